package deploy

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/strvals"

	"github.com/xmtp-selfhosted/backend/pkg/config"
	"github.com/xmtp-selfhosted/backend/pkg/pglocal"
	"github.com/xmtp-selfhosted/backend/pkg/store"
)

// pages are all documents, by their path below the repository.
func pages(t *testing.T) map[string]string {
	t.Helper()
	read := map[string]string{}
	for _, pattern := range []string{"docs/*.md", "docs/runbooks/*.md"} {
		files, err := filepath.Glob(filepath.Join(repository, pattern))
		require.NoError(t, err)
		require.NotEmpty(t, files, pattern)
		for _, file := range files {
			content, err := os.ReadFile(file)
			require.NoError(t, err)
			relative, err := filepath.Rel(repository, file)
			require.NoError(t, err)
			read[relative] = string(content)
		}
	}
	return read
}

var (
	block   = regexp.MustCompile("(?ms)^```(\\w+ ?\\w*)\n(.*?)^```$")
	helmSet = regexp.MustCompile(`--set '?([^\s']+)'?`)
	helmRun = regexp.MustCompile(`(?m)^helm (?:install|upgrade) xmtp deploy/k8s.*$`)
	helmOf  = regexp.MustCompile(`-f (\S+)`)
	link    = regexp.MustCompile(`\]\(([^)#]+)[^)]*\)`)
)

func TestTheHelmCommandsOfTheDocuments(t *testing.T) {
	loaded, err := loader.LoadDir(chartDir)
	require.NoError(t, err)
	texts := pages(t)
	for _, file := range []string{"values-small.yaml", "values-large.yaml"} {
		content, err := os.ReadFile(filepath.Join(chartDir, file))
		require.NoError(t, err)
		texts[file] = strings.ReplaceAll(string(content), "# helm", "helm")
	}
	commands := 0
	for page, text := range texts {
		for _, command := range helmRun.FindAllString(strings.ReplaceAll(text, "\\\n", " "), -1) {
			commands++
			files := []string{}
			if strings.Contains(command, "-reuse-values") { // what install.md set
				files = append(files, "testdata/secrets.yaml")
			}
			for _, file := range helmOf.FindAllStringSubmatch(command, -1) {
				files = append(files, filepath.Join(repository, file[1]))
			}
			values, err := ReadValues(files...)
			require.NoError(t, err)
			for _, set := range helmSet.FindAllStringSubmatch(command, -1) {
				require.NoError(t, strvals.ParseInto(set[1], values))
			}
			_, err = render(loaded, values)
			require.NoError(t, err, "%s: %s", page, command)
		}
	}
	require.GreaterOrEqual(t, commands, 5)
}

func TestLinksLeadSomewhere(t *testing.T) {
	for page, text := range pages(t) {
		for _, found := range link.FindAllStringSubmatch(text, -1) {
			if strings.Contains(found[1], "://") {
				continue
			}
			_, err := os.Stat(filepath.Join(repository, filepath.Dir(page), found[1]))
			require.NoError(t, err, page)
		}
	}
}

func TestEachAlertHasItsRunbookAndTheOtherWayRound(t *testing.T) {
	rules, err := filepath.Glob(chartDir + "/files/rules/*.yaml")
	require.NoError(t, err)
	alerts := map[string]bool{}
	for _, file := range rules {
		content, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, found := range regexp.MustCompile(`(?m)^\s*- alert: (\w+)$`).FindAllStringSubmatch(string(content), -1) {
			alerts[found[1]] = true
			require.Contains(t, string(content), "docs/runbooks/"+found[1]+".md")
			_, err := os.Stat(filepath.Join(repository, "docs/runbooks", found[1]+".md"))
			require.NoError(t, err)
		}
	}
	require.NotEmpty(t, alerts)
	books, err := filepath.Glob(repository + "/docs/runbooks/*.md")
	require.NoError(t, err)
	for _, book := range books {
		require.True(t, alerts[strings.TrimSuffix(filepath.Base(book), ".md")], book)
	}
}

// TestTheStatementsOfTheDocuments runs each block of SQL on a migrated primary,
// and those marked so on its replica.
func TestTheStatementsOfTheDocuments(t *testing.T) {
	dir := tempDir(t)
	primary, err := pglocal.StartPrimary(t.Context(), pglocal.Options{Dir: filepath.Join(dir, "primary"), Settings: map[string]string{"fsync": "off"}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, primary.Stop(pglocal.Immediate)) })
	_, err = store.Migrate(t.Context(), config.Secret(primary.URL("postgres")))
	require.NoError(t, err)
	replica, err := pglocal.StartReplica(t.Context(), primary, pglocal.Options{Dir: filepath.Join(dir, "replica")})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, replica.Stop(pglocal.Immediate)) })
	servers := map[string]*pglocal.Server{"sql": primary, "sql replica": replica}
	ran := 0
	for page, text := range pages(t) {
		for _, found := range block.FindAllStringSubmatch(text, -1) {
			server := servers[found[1]]
			if server == nil {
				require.NotContains(t, found[1], "sql")
				continue
			}
			connection, err := pgx.Connect(t.Context(), server.URL("postgres"))
			require.NoError(t, err)
			for _, statement := range strings.Split(strings.TrimSpace(found[2]), ";\n") {
				ran++
				_, err := connection.Exec(t.Context(), statement)
				require.NoError(t, err, "%s: %s", page, statement)
			}
			require.NoError(t, connection.Close(t.Context()))
		}
	}
	require.Greater(t, ran, 10)
}

// TestACopyAndABackupByHand runs the statements and commands that make them, on
// a real primary.
func TestACopyAndABackupByHand(t *testing.T) {
	dir := tempDir(t)
	binaries, err := pglocal.EnsureInstalled(t.Context(), nil)
	require.NoError(t, err)
	primary, err := pglocal.StartPrimary(t.Context(), pglocal.Options{Dir: filepath.Join(dir, "primary"), Binaries: binaries, Settings: map[string]string{"fsync": "off"}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, primary.Stop(pglocal.Immediate)) })
	connection, err := pgx.Connect(t.Context(), primary.URL("postgres"))
	require.NoError(t, err)
	defer func() { _ = connection.Close(context.Background()) }()
	ran := 0
	for _, found := range block.FindAllStringSubmatch(pages(t)["docs/postgresql.md"], -1) {
		switch {
		case found[1] == "sql" && strings.Contains(found[2], "replicator"):
			for _, statement := range strings.Split(strings.TrimSpace(found[2]), ";\n") {
				_, err := connection.Exec(t.Context(), statement)
				require.NoError(t, err, statement)
			}
		case found[1] == "sh" && strings.Contains(found[2], "pg_"):
			ran++
			script := strings.NewReplacer("primary.db", "127.0.0.1", " /data/", " "+dir+"/", " /backup/", " "+dir+"/").Replace(found[2])
			command := exec.CommandContext(t.Context(), "sh", "-euc", script)
			command.Env = []string{"PATH=" + binaries.Dir + ":" + os.Getenv("PATH"), "PGPORT=" + strconv.Itoa(primary.Port()), "PGPASSWORD=change-me"}
			output, err := command.CombinedOutput()
			require.NoError(t, err, "%s", output)
		}
	}
	require.Equal(t, 2, ran)
	require.FileExists(t, filepath.Join(dir, "replica", "standby.signal"))
	settings, err := os.ReadFile(filepath.Join(dir, "replica", "postgresql.auto.conf"))
	require.NoError(t, err)
	require.Contains(t, string(settings), "primary_slot_name = 'replica_1'")
	require.Contains(t, string(settings), "\nhot_standby_feedback = on\nwal_receiver_status_interval = 1s\n")
}

// TestDocumentsNameVariablesThatExist compares them with the reference, which is
// generated.
func TestDocumentsNameVariablesThatExist(t *testing.T) {
	variable := regexp.MustCompile(`\bXMTP_[A-Z0-9_]*[A-Z0-9]\b`)
	texts := pages(t)
	known := map[string]bool{"XMTP_CHAOS_SEED": true} // of the tests in docs/chaos.md
	for _, name := range variable.FindAllString(texts["docs/configuration.md"], -1) {
		known[name] = true
	}
	require.Greater(t, len(known), 50)
	for page, text := range texts {
		for _, name := range variable.FindAllString(text, -1) {
			require.True(t, known[name], "%s names %s", page, name)
		}
	}
}
