// Package proctime reads how much processor time programs took, for benchmarks on
// Linux.
package proctime

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/procfs"
)

// tick is the unit of the kernel's process times.
const tick = time.Second / 100

// Of returns the processor time that a process has taken, without its children.
func Of(pid int) (time.Duration, error) {
	stat, err := statOf(pid)
	return time.Duration(stat.UTime+stat.STime) * tick, err
}

// OfPostgres returns the processor time that the PostgreSQL server of a data
// directory has taken, with all its processes, also those that have ended.
func OfPostgres(dataDir string) (time.Duration, error) {
	content, err := os.ReadFile(filepath.Join(dataDir, "postmaster.pid"))
	if err != nil {
		return 0, err
	}
	first, _, _ := strings.Cut(string(content), "\n")
	postmaster, err := strconv.Atoi(first)
	if err != nil {
		return 0, fmt.Errorf("the first line of postmaster.pid is %q, expected a process id", first)
	}
	for {
		before, err := statOf(postmaster)
		if err != nil {
			return 0, err
		}
		running, err := childrenOf(postmaster)
		if err != nil {
			return 0, err
		}
		after, err := statOf(postmaster)
		if err != nil {
			return 0, err
		}
		// A session that ends while it is looked for would count twice or not at all.
		if ended := after.CUTime + after.CSTime; ended == before.CUTime+before.CSTime {
			return time.Duration(int(after.UTime+after.STime)+ended+running) * tick, nil
		}
	}
}

// childrenOf sums the ticks of the children that a process has now.
func childrenOf(parent int) (ticks int, err error) {
	processes, err := procfs.AllProcs()
	if err != nil {
		return 0, err
	}
	for _, process := range processes {
		stat, err := process.Stat()
		if err == nil && stat.PPID == parent { // or it has just ended
			ticks += int(stat.UTime + stat.STime)
		}
	}
	return ticks, nil
}

func statOf(pid int) (procfs.ProcStat, error) {
	process, err := procfs.NewProc(pid)
	if err != nil {
		return procfs.ProcStat{}, err
	}
	return process.Stat()
}
