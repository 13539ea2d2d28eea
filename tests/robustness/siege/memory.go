package siege

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// memory is what is known of a process's resident memory.
type memory struct {
	mu     sync.Mutex
	peak   int64
	killed bool
}

// watchEvery is how often memory is looked at; what it peaked at in between is
// known from the kernel.
const watchEvery = 10 * time.Millisecond

// watch plays the part of the kernel in a pod: whoever is larger than its limit is
// killed. It ends with ctx.
func (f *Fleet) watch(ctx context.Context) {
	ticks := time.NewTicker(watchEvery)
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
		}
		for _, role := range f.Roles {
			role.look()
		}
	}
}

func (r *Role) look() {
	r.memory.mu.Lock()
	defer r.memory.mu.Unlock()
	peak, err := highWater(r.process.PID())
	if err != nil || r.memory.killed {
		return // it is not there
	}
	r.memory.peak = max(r.memory.peak, peak)
	if peak > r.Limit {
		r.memory.killed = true
		_ = r.process.End(syscall.SIGKILL)
	}
}

// fresh forgets the peak, and says what it was and whether the role was killed.
// One that was is started again.
func (r *Role) fresh() (peak int64, killed bool, err error) {
	r.memory.mu.Lock()
	defer r.memory.mu.Unlock()
	peak, killed = r.memory.peak, r.memory.killed
	if killed {
		err = r.process.Start()
	} else {
		// The kernel's own high-water mark begins anew, too.
		err = os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", r.process.PID()), []byte("5"), 0)
	}
	r.memory.peak, r.memory.killed = 0, false
	return peak, killed, err
}

// highWater is the most that a process had resident, in bytes.
func highWater(pid int) (int64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	_, after, found := bytes.Cut(status, []byte("VmHWM:"))
	line, _, _ := bytes.Cut(after, []byte("kB"))
	if !found { // it is ending
		return 0, os.ErrProcessDone
	}
	kilobytes, err := strconv.ParseInt(string(bytes.TrimSpace(line)), 10, 64)
	return kilobytes << 10, err
}
