package rpc

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/mem"
)

// A buffer has the room asked for, at the edges of the tiers and one past them,
// also one that a growing response made longer.
func TestBuffersHaveTheRoomAskedFor(t *testing.T) {
	for _, size := range []int{0, 1, 255, 256, 257, 4096, 4097, 1 << 19, 1<<19 + 1, 1 << 20, 1<<20 + 1, 25 << 20} {
		for range 3 { // new and used ones
			buffer := used.Get(size)
			require.Len(t, *buffer, size)
			*buffer = append(*buffer, make([]byte, size+1)...)
			used.Put(buffer)
		}
	}
}

// Bytes are not used again before the frame is freed.
func TestABufferInUseIsNotGivenAgain(t *testing.T) {
	frames := make([]*Frame, 100)
	for i := range frames {
		buffer := used.Get(5000)
		for at := range *buffer {
			(*buffer)[at] = byte(i)
		}
		frames[i] = &Frame{Data: mem.BufferSlice{mem.NewBuffer(buffer, &used)}}
		if i%3 == 0 {
			frames[i].Free()
		}
	}
	for i, frame := range frames {
		if i%3 == 0 {
			continue
		}
		for _, b := range frame.Take() {
			require.Equal(t, byte(i), b)
		}
	}
}
