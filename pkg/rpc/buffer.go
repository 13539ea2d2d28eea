package rpc

import (
	"math/bits"
	"sync"

	"google.golang.org/grpc/mem"
)

// Buffers of 256 bytes to 1 MiB are used again.
const (
	smallestTier = 8 // 256 bytes, as a power of two
	tiers        = 13
)

// buffers keep the bytes of messages that were sent or read: to clear and to
// collect new ones costs more than to fill them. grpc-go's own pool clears what it
// gives, and has few sizes, none of them between 32 KiB and 1 MiB.
type buffers struct{ tiers [tiers]sync.Pool }

var used buffers

// Buffers are the buffers of all connections of the process. What is in one is
// from its last use.
func Buffers() mem.BufferPool { return &used }

// Get implements mem.BufferPool.
func (b *buffers) Get(size int) *[]byte {
	tier := max(bits.Len(uint(max(size, 1)-1))-smallestTier, 0)
	if tier >= tiers {
		fresh := make([]byte, size)
		return &fresh
	}
	if old, ok := b.tiers[tier].Get().(*[]byte); ok {
		*old = (*old)[:size]
		return old
	}
	fresh := make([]byte, size, 1<<(smallestTier+tier))
	return &fresh
}

// Put implements mem.BufferPool.
func (b *buffers) Put(buffer *[]byte) {
	tier := bits.Len(uint(cap(*buffer))) - 1 - smallestTier
	if tier < 0 || tier >= tiers {
		return
	}
	b.tiers[tier].Put(buffer)
}
