package main

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"runtime/pprof"
	"strings"
	"time"

	"github.com/xmtp-selfhosted/backend/pkg/proctime"
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

// cpu is the CPU time that the process has used.
func (c *child) cpu() (time.Duration, error) { return proctime.Of(c.command.Process.Pid) }

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
