package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/pprof"
	"strconv"
	"strings"
	"time"
)

// child is the publisher in a process of its own, so that its CPU time is its
// own.
type child struct {
	command *exec.Cmd
	pipe    io.WriteCloser
	address string
}

func startChild(primary, nats, profile string) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	command := exec.Command(self, "-serve", "-profile="+profile)
	command.Env = append(os.Environ(), "XMTP_PRIMARY_URL="+primary, "XMTP_NATS_URL="+nats, "XMTP_IDENTIFIER=bench")
	command.Stderr = os.Stderr
	pipe, err := command.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := command.Start(); err != nil {
		return nil, err
	}
	address, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return nil, errors.Join(errors.New("the publisher did not start"), err, command.Wait())
	}
	return &child{command: command, pipe: pipe, address: strings.TrimSpace(address)}, nil
}

func (c *child) stop() error {
	return errors.Join(c.pipe.Close(), c.command.Wait())
}

// clockTick is the unit of process times in /proc on Linux.
const clockTick = time.Second / 100

// cpu is the CPU time that the process has used.
func (c *child) cpu() (time.Duration, error) {
	own, _, err := processTimes(c.command.Process.Pid)
	return own, err
}

// postgresCPU is the CPU time of a server's processes, those that ended included.
func postgresCPU(dataDir string) (time.Duration, error) {
	pidFile, err := os.ReadFile(filepath.Join(dataDir, "postmaster.pid"))
	if err != nil {
		return 0, err
	}
	first, _, _ := strings.Cut(string(pidFile), "\n")
	postmaster, err := strconv.Atoi(first)
	if err != nil {
		return 0, err
	}
	own, ended, err := processTimes(postmaster)
	if err != nil {
		return 0, err
	}
	sum := own + ended
	list, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", postmaster, postmaster))
	if err != nil {
		return 0, err
	}
	for _, field := range strings.Fields(string(list)) {
		pid, err := strconv.Atoi(field)
		if err != nil {
			return 0, err
		}
		if used, _, err := processTimes(pid); err == nil { // or it has just ended
			sum += used
		}
	}
	return sum, nil
}

// processTimes are the CPU times of a process and of its children that ended.
func processTimes(pid int) (own, ended time.Duration, err error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0, err
	}
	_, after, _ := strings.Cut(string(stat), ") ") // past the name, which may hold spaces
	fields := strings.Fields(after)
	const user, system, endedUser, endedSystem = 11, 12, 13, 14
	var ticks [4]int64
	for i, field := range []int{user, system, endedUser, endedSystem} {
		if ticks[i], err = strconv.ParseInt(fields[field], 10, 64); err != nil {
			return 0, 0, err
		}
	}
	return time.Duration(ticks[0]+ticks[1]) * clockTick, time.Duration(ticks[2]+ticks[3]) * clockTick, nil
}

// untilParentEnds runs until standard input is closed.
func untilParentEnds(ctx context.Context, profile string, run func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	if profile != "" {
		file, err := os.Create(profile)
		if err != nil {
			return err
		}
		defer file.Close()
		if err := pprof.StartCPUProfile(file); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	return run(ctx)
}
