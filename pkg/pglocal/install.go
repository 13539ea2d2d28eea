package pglocal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// clusterConf is where postgresql-common looks for what to do when a server package arrives.
const clusterConf = "/etc/postgresql-common/createcluster.d"

// EnsureInstalled returns what Find does and, when that finds nothing, installs PostgreSQL first. progress may be nil.
func EnsureInstalled(ctx context.Context, progress func(step string)) (Binaries, error) {
	found, err := Find()
	if !errors.Is(err, ErrNotFound) {
		return found, err
	}
	if err := Install(ctx, progress); err != nil {
		return Binaries{}, err
	}
	return Find()
}

// Install installs the newest PostgreSQL server that the system's packages offer, without a cluster of the system's own
// and without starting one. It needs apt-get, and root or a sudo that asks nothing; the error wraps ErrNotFound and
// says in one line what to do by hand. progress may be nil.
func Install(ctx context.Context, progress func(step string)) error {
	if progress == nil {
		progress = func(string) {}
	}
	i := installer{progress: progress, confDir: clusterConf}
	if _, err := exec.LookPath("apt-get"); err != nil {
		return fmt.Errorf("%w and this machine has no apt-get to install it with", missing())
	}
	if os.Geteuid() != 0 {
		i.prefix = []string{"sudo", "-n"}
		if _, err := i.run(ctx, "", "true"); err != nil {
			return fmt.Errorf("%w; this user cannot do that without a password", missing())
		}
	}
	return i.install(ctx)
}

// missing is the error of Find on a machine without PostgreSQL.
func missing() error { return notFound(nil, 0) }

type installer struct {
	progress func(step string)
	prefix   []string // what makes a command run as root
	confDir  string
}

func (i installer) install(ctx context.Context) (err error) {
	name, err := i.choose(ctx)
	if err != nil {
		return err
	}
	i.progress("installing " + name + " with apt-get")
	// First the package that owns the configuration folder, then the wish for no cluster, then the server.
	if err := i.aptInstall(ctx, "postgresql-common"); err != nil {
		return err
	}
	conf := filepath.Join(i.confDir, "xmtp-dev.conf")
	if _, err := i.run(ctx, "", "mkdir", "-p", i.confDir); err != nil {
		return err
	}
	if _, err := i.run(ctx, "create_main_cluster = false\n", "tee", conf); err != nil {
		return err
	}
	defer func() { // a PostgreSQL that somebody installs later is not our business
		_, removal := i.run(context.WithoutCancel(ctx), "", "rm", "-f", conf)
		err = errors.Join(err, removal)
	}()
	return i.aptInstall(ctx, name)
}

// choose returns the newest server package on offer. The lists of packages may be missing, as in a fresh container.
func (i installer) choose(ctx context.Context) (string, error) {
	newest, err := i.newest(ctx)
	if err != nil {
		return "", err
	}
	if newest < MinVersion {
		if err := i.update(ctx); err != nil {
			return "", err
		}
		if newest, err = i.newest(ctx); err != nil {
			return "", err
		}
	}
	if newest < MinVersion {
		return "", fmt.Errorf("%w: version %d or newer is needed and this system's packages offer %s: add https://apt.postgresql.org and run again",
			ErrNotFound, MinVersion, offer(newest))
	}
	return "postgresql-" + strconv.Itoa(newest), nil
}

func offer(version int) string {
	if version == 0 {
		return "none"
	}
	return "only " + strconv.Itoa(version)
}

var serverPackage = regexp.MustCompile(`(?m)^postgresql-(\d+) `)

func (i installer) newest(ctx context.Context) (int, error) {
	out, err := i.run(ctx, "", "apt-cache", "search", "--names-only", "^postgresql-[0-9]+$")
	if err != nil {
		return 0, err
	}
	newest := 0
	for _, match := range serverPackage.FindAllStringSubmatch(out, -1) {
		if version, err := strconv.Atoi(match[1]); err == nil {
			newest = max(newest, version)
		}
	}
	return newest, nil
}

func (i installer) update(ctx context.Context) error {
	i.progress("updating the lists of packages with apt-get")
	_, err := i.run(ctx, "", "apt-get", "update", "-qq")
	return err
}

// aptInstall tries again with fresh lists, since old ones name packages that are no longer there.
func (i installer) aptInstall(ctx context.Context, name string) error {
	args := []string{
		"env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "install", "-y", "-qq", "--no-install-recommends",
		"-o", "DPkg::Lock::Timeout=120", name,
	}
	_, err := i.run(ctx, "", args...)
	if err == nil || ctx.Err() != nil {
		return err
	}
	if err := i.update(ctx); err != nil {
		return err
	}
	_, err = i.run(ctx, "", args...)
	return err
}

func (i installer) run(ctx context.Context, stdin string, args ...string) (string, error) {
	args = append(append([]string{}, i.prefix...), args...)
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	cmd.Stdin = strings.NewReader(stdin)
	cmd.WaitDelay = killWithin
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("install PostgreSQL: %s: %w: %s", strings.Join(args, " "), err, lastLine(problems.String()))
	}
	return out.String(), nil
}
