package pglocal

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// sharedDir holds the data of clones in folders that the server's user cannot enter.
const sharedDir = "/var/lib/xmtp-dev"

// PrepareDir makes sure that dir exists and that PostgreSQL's user can reach it. When this process is root and that
// user cannot enter a folder above dir (a clone in root's home), the data goes to /var/lib/xmtp-dev/<hash> and dir
// becomes a link to it; then note is a sentence to show, else it is empty. Calling it again is harmless.
func PrepareDir(dir string) (note string, err error) {
	return prepareDir(dir, sharedDir)
}

func prepareDir(dir, shared string) (note string, err error) {
	dir, err = filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("prepare the data directory: %w", err)
	}
	elsewhere := filepath.Join(shared, shortHash(dir))
	if target, err := os.Readlink(dir); err == nil && target == elsewhere {
		if err := makeDir(elsewhere); err != nil {
			return "", fmt.Errorf("prepare the data directory: %w", err)
		}
		return moved(dir, elsewhere), nil
	}
	if err := makeDir(dir); err != nil {
		return "", fmt.Errorf("prepare the data directory: %w", err)
	}
	if os.Geteuid() != 0 {
		return "", nil
	}
	as, err := accountFor(filepath.Join(dir, "data"))
	if err != nil {
		return "", err
	}
	if as.canEnter(dir) {
		return "", nil
	}
	// Only an empty folder gives way: what is in it may be the only copy of somebody's data.
	if err := os.Remove(dir); err != nil {
		return "", fmt.Errorf("user %s cannot enter %s, and it is not empty: move it to %s or open the folders above it (chmod o+x)",
			as.name, dir, elsewhere)
	}
	if err := makeDir(elsewhere); err != nil {
		return "", fmt.Errorf("prepare the data directory: %w", err)
	}
	if err := os.Symlink(elsewhere, dir); err != nil {
		return "", fmt.Errorf("prepare the data directory: %w", err)
	}
	return moved(dir, elsewhere), nil
}

func moved(dir, elsewhere string) string {
	return fmt.Sprintf("the user that runs PostgreSQL cannot enter %s: its data is in %s, and %s links to it", filepath.Dir(dir), elsewhere, dir)
}

// makeDir creates a folder and those above it that are missing. When this process is root, another user must be able to
// enter them, whatever the umask is.
func makeDir(dir string) error {
	err := os.Mkdir(dir, 0o755)
	if errors.Is(err, fs.ErrNotExist) {
		if err := makeDir(filepath.Dir(dir)); err != nil {
			return err
		}
		err = os.Mkdir(dir, 0o755)
	}
	switch {
	case errors.Is(err, fs.ErrExist):
		return nil
	case err != nil || os.Geteuid() != 0:
		return err
	}
	return os.Chmod(dir, 0o755)
}

// shortHash names a path in places where the path itself is too long or not allowed.
func shortHash(path string) string {
	sum := sha256.Sum256([]byte(path))
	return hex.EncodeToString(sum[:6])
}
