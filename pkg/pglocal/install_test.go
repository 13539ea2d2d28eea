package pglocal

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// fakeSystem puts programs of these names and shell scripts first on the PATH. Each call is noted in the returned file:
// the tests must not change the packages of the machine that runs them.
func fakeSystem(t *testing.T, scripts map[string]string) (dir, calls string) {
	t.Helper()
	dir = t.TempDir()
	calls = filepath.Join(dir, "calls")
	for name, script := range scripts {
		text := "#!/bin/sh\necho \"" + name + " $*\" >>" + calls + "\n" + script + "\n"
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755))
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return dir, calls
}

func lines(t *testing.T, file string) []string {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	return strings.Split(strings.TrimSpace(string(text)), "\n")
}

func TestInstallTakesTheNewestServerAndMakesNoCluster(t *testing.T) {
	conf := filepath.Join(t.TempDir(), "createcluster.d")
	dir, calls := fakeSystem(t, map[string]string{
		"apt-cache": `test -f "$(dirname "$0")/lists" && printf 'postgresql-9 - x\npostgresql-15 - x\npostgresql-17 - x\n'; exit 0`,
		// What the configuration says while a server package arrives is what counts.
		"apt-get": `case "$*" in update*) touch "$(dirname "$0")/lists";; *postgresql-17) cp ` + conf + `/* "$(dirname "$0")/seen";; esac`,
	})
	var steps []string
	i := installer{progress: func(step string) { steps = append(steps, step) }, confDir: conf}
	require.NoError(t, i.install(t.Context()))

	require.Equal(t, []string{"create_main_cluster = false"}, lines(t, filepath.Join(dir, "seen")))
	left, err := os.ReadDir(conf)
	require.NoError(t, err)
	require.Empty(t, left, "the configuration outlives the installation")
	require.Equal(t, []string{"updating the lists of packages with apt-get", "installing postgresql-17 with apt-get"}, steps)
	got := lines(t, calls)
	require.Len(t, got, 5, "search, update, search, common, server")
	require.Regexp(t, "^apt-get install .* postgresql-common$", got[3])
	require.Regexp(t, "^apt-get install .* postgresql-17$", got[4])
}

func TestInstallTriesAgainWithFreshLists(t *testing.T) {
	_, calls := fakeSystem(t, map[string]string{
		"apt-cache": `printf 'postgresql-15 - x\n'`,
		"apt-get":   `case "$*" in update*) touch "$(dirname "$0")/fresh";; *) test -f "$(dirname "$0")/fresh" || { echo "E: 404" >&2; exit 100; };; esac`,
	})
	i := installer{progress: func(string) {}, confDir: filepath.Join(t.TempDir(), "d")}
	require.NoError(t, i.install(t.Context()))
	require.Contains(t, lines(t, calls), "apt-get update -qq")
}

func TestInstallSaysWhatIsWrong(t *testing.T) {
	cases := map[string]struct {
		scripts map[string]string
		want    string
		missing bool
	}{
		"only old packages": {
			map[string]string{"apt-cache": `printf 'postgresql-14 - x\n'`, "apt-get": ""},
			"version 15 or newer is needed and this system's packages offer only 14: add https://apt.postgresql.org", true,
		},
		"no packages": {map[string]string{"apt-cache": "", "apt-get": ""}, "offer none", true},
		"no network":  {map[string]string{"apt-cache": "", "apt-get": "echo 'E: could not resolve' >&2; exit 100"}, "apt-get update -qq: exit status 100: E: could not resolve", false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			fakeSystem(t, c.scripts)
			i := installer{progress: func(string) {}, confDir: filepath.Join(t.TempDir(), "d")}
			err := i.install(t.Context())
			require.ErrorContains(t, err, c.want)
			require.NotContains(t, err.Error(), "\n")
			if c.missing {
				require.ErrorIs(t, err, ErrNotFound)
			}
		})
	}
}

func TestInstallGoesThroughItsPrefix(t *testing.T) {
	_, calls := fakeSystem(t, map[string]string{"sudo": `shift; "$@"`, "apt-cache": `printf 'postgresql-15 - x\n'`, "apt-get": ""})
	i := installer{progress: func(string) {}, prefix: []string{"sudo", "-n"}, confDir: filepath.Join(t.TempDir(), "d")}
	require.NoError(t, i.install(context.Background()))
	require.Contains(t, strings.Join(lines(t, calls), "\n"), "sudo -n env DEBIAN_FRONTEND=noninteractive apt-get install")
}
