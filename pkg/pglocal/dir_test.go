package pglocal

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// project returns a folder for data below one that only its owner can enter, and a place that everybody can.
func project(t *testing.T) (dir, shared string) {
	t.Helper()
	root, err := os.MkdirTemp("", "pglocal-")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(root)) })
	require.NoError(t, os.Chmod(root, 0o755))
	home := filepath.Join(root, "home")
	require.NoError(t, os.Mkdir(home, 0o700))
	return filepath.Join(home, "project", ".data", "postgres"), filepath.Join(root, "shared")
}

func TestDataMovesOnlyWhenItsUserCannotGetIn(t *testing.T) {
	dir, shared := project(t)
	note, err := prepareDir(dir, shared)
	require.NoError(t, err)
	if os.Geteuid() != 0 { // an ordinary user runs the server itself
		require.Empty(t, note)
		require.NoDirExists(t, shared)
		return
	}
	target, err := os.Readlink(dir)
	require.NoError(t, err)
	require.Equal(t, shared, filepath.Dir(target))
	require.Contains(t, note, dir)
	require.Contains(t, note, target)

	// The server runs there, by the link, and a second call changes nothing.
	s, err := StartPrimary(t.Context(), Options{Dir: filepath.Join(dir, "primary"), Settings: map[string]string{"fsync": "off"}})
	require.NoError(t, err)
	require.NoError(t, s.Stop(Fast))
	require.Equal(t, filepath.Join(target, "primary"), s.Dir())
	again, err := prepareDir(dir, shared)
	require.NoError(t, err)
	require.Equal(t, note, again)
	require.FileExists(t, filepath.Join(dir, "primary", "data", "PG_VERSION"))

	// Somebody cleared the shared place.
	require.NoError(t, os.RemoveAll(shared))
	_, err = prepareDir(dir, shared)
	require.NoError(t, err)
	require.DirExists(t, target)
}

func TestDataStaysWhereItsUserCanGetIn(t *testing.T) {
	dir, shared := project(t)
	open := filepath.Join(filepath.Dir(shared), "open", "postgres")
	for range 2 {
		note, err := prepareDir(open, shared)
		require.NoError(t, err)
		require.Empty(t, note)
	}
	info, err := os.Lstat(open)
	require.NoError(t, err)
	require.True(t, info.IsDir())
	require.NoDirExists(t, dir)
}

func TestDataThatIsThereIsNotMoved(t *testing.T) {
	dir, shared := project(t)
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "primary"), 0o755))
	_, err := prepareDir(dir, shared)
	require.DirExists(t, filepath.Join(dir, "primary"))
	if os.Geteuid() != 0 {
		require.NoError(t, err)
		return
	}
	require.ErrorContains(t, err, "is not empty: move it to "+shared)
	_, err = StartPrimary(t.Context(), Options{Dir: dir})
	require.ErrorContains(t, err, "cannot enter "+dir)
}
