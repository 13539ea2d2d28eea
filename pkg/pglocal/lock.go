package pglocal

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// dirLock says that a living process owns a server's folder. The kernel drops it when that process dies, however it
// dies, which is what tells an orphaned server from one in use. PostgreSQL does not inherit it.
type dirLock struct {
	once sync.Once
	file *os.File
}

// lockWithin is how long a lock may take: a process that was killed a moment ago may not have let go yet, and a program
// that is just being started has a copy of the file until it runs.
const lockWithin = 2 * time.Second

func lockDir(ctx context.Context, dir string) (*dirLock, error) {
	file, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o666)
	if err != nil {
		return nil, fmt.Errorf("lock the data directory: %w", err)
	}
	locked := poll(ctx.Done(), lockWithin, func() bool {
		err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		return err == nil
	})
	if !locked {
		_ = file.Close()
		return nil, errors.Join(ctx.Err(), fmt.Errorf("%w: %s", ErrInUse, dir))
	}
	return &dirLock{file: file}, nil
}

func (l *dirLock) release() {
	if l != nil {
		l.once.Do(func() { _ = l.file.Close() })
	}
}
