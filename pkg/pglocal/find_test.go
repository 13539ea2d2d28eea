package pglocal

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// installation makes a folder with programs that claim to be PostgreSQL of this version.
func installation(t *testing.T, version string, programs ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, p := range programs {
		script := fmt.Sprintf("#!/bin/sh\necho 'postgres (PostgreSQL) %s'\n", version)
		require.NoError(t, os.WriteFile(filepath.Join(dir, p), []byte(script), 0o755))
	}
	return dir
}

func TestFindTakesTheNewest(t *testing.T) {
	old := installation(t, "14.9 (Debian 14.9-1)", tools...)
	edge := installation(t, "15.0", tools...)
	newest := installation(t, "18beta1", tools...)
	partial := installation(t, "19.1", "postgres", "initdb")

	found, err := Find(old, edge, newest, partial)
	require.NoError(t, err)
	require.Equal(t, Binaries{Dir: newest, Version: 18}, found)

	found, err = Find(edge, old)
	require.NoError(t, err)
	require.Equal(t, Binaries{Dir: edge, Version: 15}, found)
}

func TestFindSaysWhatIsMissingAndHowToGetIt(t *testing.T) {
	empty := t.TempDir()
	_, err := Find(empty)
	require.ErrorIs(t, err, ErrNotFound)
	require.EqualError(t, err, "no PostgreSQL server found: version 15 or newer is needed in "+empty+
		"; install it with: apt-get install postgresql, or from https://apt.postgresql.org")

	_, err = Find(installation(t, "14.9", tools...))
	require.ErrorIs(t, err, ErrNotFound)
	require.ErrorContains(t, err, "(the newest there is 14)")

	require.EqualError(t, missing(), "no PostgreSQL server found: version 15 or newer is needed on the PATH or in /usr/lib/postgresql"+
		"; install it with: apt-get install postgresql, or from https://apt.postgresql.org")
}

func TestFindWithoutFoldersFindsThisMachines(t *testing.T) {
	found, err := Find()
	require.NoError(t, err)
	require.GreaterOrEqual(t, found.Version, MinVersion)
}
