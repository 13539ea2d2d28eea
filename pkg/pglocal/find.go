package pglocal

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// MinVersion is the oldest major version of PostgreSQL that the project runs on.
const MinVersion = 15

// ErrNotFound is wrapped by Find's error when the machine has no PostgreSQL that is new enough.
var ErrNotFound = errors.New("no PostgreSQL server found")

// tools are the programs a directory must hold to count as an installation.
var tools = []string{"postgres", "initdb", "pg_basebackup", "pg_ctl", "pg_controldata"}

// places are where packages put server programs that are not on the PATH.
var places = []string{
	"/usr/lib/postgresql/*/bin", // Debian, Ubuntu
	"/usr/pgsql-*/bin",          // the project's own RPM packages
	"/usr/local/pgsql/bin",      // built from source
}

// Binaries is one installation of the PostgreSQL server programs.
type Binaries struct {
	Dir     string // the folder that holds postgres, initdb and the others
	Version int    // the major version
}

func (b Binaries) path(tool string) string { return filepath.Join(b.Dir, tool) }

// Find returns the newest PostgreSQL of at least MinVersion on the PATH or in the usual package folders. When dirs are
// given only those are searched. The error is one line that says what is missing and how to get it, and wraps
// ErrNotFound.
func Find(dirs ...string) (Binaries, error) {
	found, older := findAll(dirs)
	if len(found) > 0 {
		newest := found[0]
		for _, b := range found[1:] {
			if b.Version > newest.Version {
				newest = b
			}
		}
		return newest, nil
	}
	return Binaries{}, notFound(dirs, older)
}

// findMajor returns an installation of exactly this version.
func findMajor(version int) (Binaries, error) {
	found, _ := findAll(nil)
	for _, b := range found {
		if b.Version == version {
			return b, nil
		}
	}
	return Binaries{}, fmt.Errorf("%w of version %d; install it (apt-get install postgresql-%d)", ErrNotFound, version, version)
}

func notFound(dirs []string, older int) error {
	where := "on the PATH or in /usr/lib/postgresql"
	if len(dirs) > 0 {
		where = "in " + strings.Join(dirs, ", ")
	}
	have := ""
	if older > 0 {
		have = fmt.Sprintf(" (the newest there is %d)", older)
	}
	return fmt.Errorf("%w: version %d or newer is needed %s%s; install it with: apt-get install postgresql, or from https://apt.postgresql.org",
		ErrNotFound, MinVersion, where, have)
}

// findAll returns all usable installations, those of the PATH first, and the newest version that is too old.
func findAll(dirs []string) (found []Binaries, older int) {
	if len(dirs) == 0 {
		if p, err := exec.LookPath("postgres"); err == nil {
			if p, err = filepath.EvalSymlinks(p); err == nil {
				dirs = append(dirs, filepath.Dir(p))
			}
		}
		for _, pattern := range places {
			matches, _ := filepath.Glob(pattern) // the patterns are constant and valid
			dirs = append(dirs, matches...)
		}
	}
	for _, dir := range dirs {
		version, err := inspect(dir)
		switch {
		case err != nil:
		case version < MinVersion:
			older = max(older, version)
		default:
			found = append(found, Binaries{Dir: dir, Version: version})
		}
	}
	return found, older
}

var versionLine = regexp.MustCompile(`^postgres \(PostgreSQL\) (\d+)`)

// inspect returns the major version of the installation in dir, or an error when it is not a complete one.
func inspect(dir string) (int, error) {
	for _, tool := range tools {
		if info, err := os.Stat(filepath.Join(dir, tool)); err != nil || info.Mode()&0o111 == 0 {
			return 0, fmt.Errorf("%s has no program %s", dir, tool)
		}
	}
	out, err := exec.Command(filepath.Join(dir, "postgres"), "--version").Output()
	if err != nil {
		return 0, fmt.Errorf("ask postgres for its version: %w", err)
	}
	match := versionLine.FindSubmatch(out)
	if match == nil {
		return 0, fmt.Errorf("postgres --version says %q", out)
	}
	return strconv.Atoi(string(match[1]))
}
