package pglocal

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
)

// dirLock says that a living process owns a server's folder. The kernel drops it when that process dies, however it
// dies, which is what tells an orphaned server from one in use. PostgreSQL does not inherit it.
type dirLock struct {
	once sync.Once
	file *os.File
}

func lockDir(dir string) (*dirLock, error) {
	file, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o666)
	if err != nil {
		return nil, fmt.Errorf("lock the data directory: %w", err)
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("%w: %s", ErrInUse, dir)
	}
	return &dirLock{file: file}, nil
}

func (l *dirLock) release() {
	if l != nil {
		l.once.Do(func() { _ = l.file.Close() })
	}
}
