package pglocal

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// serverUser is who runs PostgreSQL when this process is root, because PostgreSQL refuses to run as root.
const serverUser = "postgres"

// account is who runs the server programs. The zero value is the user of this process.
type account struct {
	name string
	cred *syscall.Credential
}

// accountFor returns who runs a server in dataDir. For root that is the owner of a data directory that exists already,
// so that root can go on with what an ordinary user began, else the user postgres.
func accountFor(dataDir string) (account, error) {
	owner, exists, err := ownerOf(dataDir)
	if err != nil {
		return account{}, err
	}
	me := os.Geteuid()
	if me != 0 {
		if exists && owner != me {
			return account{}, fmt.Errorf("%s belongs to %s: run as that user or as root, or remove it", dataDir, userName(owner))
		}
		return account{}, nil
	}
	if exists && owner != 0 {
		if u, err := user.LookupId(strconv.Itoa(owner)); err == nil {
			return newAccount(u)
		}
	}
	u, err := user.Lookup(serverUser)
	if err != nil {
		return account{}, fmt.Errorf("PostgreSQL does not run as root and there is no user %s: create it (adduser --system --group %s) or run as an ordinary user",
			serverUser, serverUser)
	}
	return newAccount(u)
}

func ownerOf(path string) (uid int, exists bool, err error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, fmt.Errorf("look at the data directory: %w", err)
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false, fmt.Errorf("the owner of %s is not known", path)
	}
	return int(stat.Uid), true, nil
}

func userName(uid int) string {
	if u, err := user.LookupId(strconv.Itoa(uid)); err == nil {
		return "user " + u.Username
	}
	return "user " + strconv.Itoa(uid)
}

func newAccount(u *user.User) (account, error) {
	ids, err := u.GroupIds()
	if err != nil {
		return account{}, fmt.Errorf("look up the groups of user %s: %w", u.Username, err)
	}
	cred := &syscall.Credential{}
	if cred.Uid, err = parseID(u.Uid); err != nil {
		return account{}, err
	}
	if cred.Gid, err = parseID(u.Gid); err != nil {
		return account{}, err
	}
	for _, id := range ids {
		gid, err := parseID(id)
		if err != nil {
			return account{}, err
		}
		cred.Groups = append(cred.Groups, gid)
	}
	return account{name: u.Username, cred: cred}, nil
}

func parseID(s string) (uint32, error) {
	id, err := strconv.ParseUint(s, 10, 32)
	if err != nil {
		return 0, fmt.Errorf("user or group id: %w", err)
	}
	return uint32(id), nil
}

// prepare makes cmd run as the account in a process group of its own, so that Ctrl-C in a terminal reaches only the
// process that owns the servers, with an environment in which no PG variable of the caller changes the outcome.
func (a account) prepare(cmd *exec.Cmd, dir string) {
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: a.cred}
	for _, v := range os.Environ() {
		name, _, _ := strings.Cut(v, "=")
		if !strings.HasPrefix(name, "PG") && !strings.HasPrefix(name, "LC_") && name != "LANG" && name != "LANGUAGE" {
			cmd.Env = append(cmd.Env, v)
		}
	}
	// Messages are read here (a port in use, for one), so they must not be translated.
	cmd.Env = append(cmd.Env, "LC_ALL=C", "HOME="+dir)
}

// own gives path to the account; path and all below it when it exists.
func (a account) own(path string) error {
	if a.cred == nil {
		return nil
	}
	return filepath.WalkDir(path, func(p string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(p, int(a.cred.Uid), int(a.cred.Gid))
	})
}

// canEnter reports whether the account can make dir its working directory.
func (a account) canEnter(dir string) bool {
	cmd := exec.Command("/bin/sh", "-c", ":")
	a.prepare(cmd, dir)
	return cmd.Run() == nil
}
