package rpc

import (
	"math/bits"
	"sync"

	"google.golang.org/grpc/mem"
)

// Buffers of 4 KiB to 1 MiB are used again.
const (
	smallestTier = 12 // 4 KiB, as a power of two
	tiers        = 9
)

// buffers keep the bytes of responses that were sent: to clear and to collect new
// ones costs more than to fill them. grpc-go's own pool clears what it gives, and
// has nothing between 32 KiB and 1 MiB.
type buffers struct{ tiers [tiers]sync.Pool }

var sent buffers

// Buffer returns an empty buffer with room for size bytes, for FrameOfBuffer.
func Buffer(size int) []byte { return (*sent.Get(size))[:0] }

// FrameOfBuffer wraps encoded bytes that nobody else has: once the frame is sent or
// freed they are used for something else.
func FrameOfBuffer(encoded []byte) *Frame {
	return &Frame{Data: mem.BufferSlice{mem.NewBuffer(&encoded, &sent)}}
}

// Get implements mem.BufferPool; what is in the buffer is from its last use.
func (b *buffers) Get(size int) *[]byte {
	tier := max(bits.Len(uint(max(size, 1)-1))-smallestTier, 0)
	if tier >= tiers {
		fresh := make([]byte, size)
		return &fresh
	}
	if used, ok := b.tiers[tier].Get().(*[]byte); ok {
		*used = (*used)[:size]
		return used
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
