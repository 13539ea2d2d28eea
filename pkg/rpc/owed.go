package rpc

import (
	"context"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"

	"github.com/xmtp-selfhosted/backend/pkg/budget"
	"github.com/xmtp-selfhosted/backend/pkg/fault"
)

// How answers leave. SendMsg returns when grpc-go has queued an answer, and the
// handler's return only queues the trailers behind it: it is written when the
// peer's windows allow, which may be never. So an answer's bytes are owed until
// grpc-go frees their buffers. It does so as they are written, and when it
// processes the end of their stream. It does not
//   - when the connection ends: what its writer had in work is dropped. The
//     connection gives back what is owed on it then;
//   - when the stream was reset while the answer was being queued, since its writer
//     drops what comes for a stream that it does not know. Such an answer is given
//     back after the time limit.
//
// A long answer keeps its handler until it has left. That leaves grpc-go's timer for
// the call's deadline alive, which ends the stream, and gives the call the status
// that it deserves. A short one does not: the wait would cost a write of its own for
// the trailers of every call. It fits into the window with which HTTP/2 begins a
// stream, so that it stands still only when the whole connection does.

// endGrace is how long grpc-go may take to drop an answer whose stream was reset.
const endGrace = time.Second

// tooLongForTrailers resets a stream. grpc-go has no function for that, and trailers
// would wait behind the answer; but it resets a stream whose trailers are longer than
// its peer accepts. Gateways say that they accept maxHeaderBytes.
var tooLongForTrailers = metadata.Pairs("xmtp-answer-not-taken", strings.Repeat("0", maxHeaderBytes))

var errNotTaken = fault.Errorf(fault.Late, "the answer was not taken in time")

// owed is an answer between its first byte and its last one's leaving.
type owed struct {
	holder *budget.Holder // nil when nobody counts
	taken  chan struct{}  // has room for one: something was taken
	left   chan struct{}  // closed when all was

	mu      sync.Mutex
	charged int64 // of the budget
	bytes   int64 // in buffers that are not freed
	over    bool
	conn    *conn       // nil until it is sent, and of a server that counts otherwise
	fuse    *time.Timer // what happens if it does not leave
}

func newOwed(b *budget.Budget) *owed {
	o := &owed{taken: make(chan struct{}, 1), left: make(chan struct{})}
	if b != nil {
		o.holder = b.Holder()
	}
	return o
}

// charge replaces what is taken of the budget. Giving back comes last, so that
// nobody gets in between what is in fact still held.
func (o *owed) charge(bytes int64) {
	if o.holder == nil || bytes == o.charged {
		return
	}
	if bytes > 0 {
		o.holder.Charge(bytes)
	}
	if o.charged > 0 {
		o.holder.Give(o.charged)
	}
	o.charged = bytes
}

// leave counts a buffer that was freed.
func (o *owed) leave(bytes int64) {
	o.mu.Lock()
	o.bytes -= bytes
	switch {
	case o.bytes == 0:
		o.settle()
	case !o.over && o.bytes <= o.charged/2:
		o.charge(o.bytes)
	}
	o.mu.Unlock()
	select {
	case o.taken <- struct{}{}:
	default:
	}
}

// giveUp gives back an answer whose buffers nobody will free.
func (o *owed) giveUp() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.settle()
}

// settle is called with the lock held.
func (o *owed) settle() {
	if o.over {
		return
	}
	o.over = true
	o.charge(0)
	close(o.left)
	if o.fuse != nil {
		o.fuse.Stop()
	}
	if o.conn != nil {
		o.conn.paid(o)
	}
}

// unlessLeft runs do after a while, unless all has left by then.
func (o *owed) unlessLeft(after time.Duration, do func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.over {
		o.fuse = time.AfterFunc(after, do)
	}
}

// on makes the answer one of a connection's.
func (o *owed) on(c *conn, short bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.over {
		return
	}
	if c.owe(o, short) {
		o.conn = c
	} else {
		o.settle() // the connection has ended
	}
}

// pool is where the buffers of an answer go.
type pool struct {
	*owed
	inner mem.Buffer // freed with the buffer; nil for one of the used ones
}

func (p pool) Get(size int) *[]byte { return used.Get(size) }

func (p pool) Put(buffer *[]byte) {
	bytes := int64(cap(*buffer))
	if p.inner == nil {
		used.Put(buffer)
	} else {
		p.inner.Free()
	}
	p.leave(bytes)
}

// owe makes an owed answer of any other, and counts it.
func (s *Server) owe(frame *Frame) *owed {
	o := newOwed(s.responses)
	data := frame.Data
	frame.Data = nil
	for _, inner := range data {
		o.add(&frame.Data, inner)
	}
	o.charge(o.bytes)
	if o.bytes == 0 {
		o.giveUp()
	}
	frame.owed = o
	return o
}

func (o *owed) add(data *mem.BufferSlice, inner mem.Buffer) {
	content := inner.ReadOnlyData()
	if len(content) == 0 {
		inner.Free()
		return
	}
	if cap(content) < smallestPiece { // grpc-go does not tell when it frees it
		piece := used.Get(smallestPiece)
		*piece = append((*piece)[:0], content...)
		inner.Free()
		o.bytes += int64(cap(*piece))
		*data = append(*data, mem.NewBuffer(piece, pool{owed: o}))
		return
	}
	o.bytes += int64(cap(content))
	*data = append(*data, mem.NewBuffer(&content, pool{owed: o, inner: inner}))
}

// send sends the answer of a unary call. sent runs once it is on its way.
func (s *Server) send(stream grpc.ServerStream, response *Frame, sent func()) error {
	o, ctx := response.owed, stream.Context()
	if o == nil {
		o = s.owe(response)
	}
	c, short := connOf(ctx), response.Data.Len() <= shortAnswer
	if c != nil {
		o.on(c, short)
	}
	err := stream.SendMsg(response)
	sent()
	switch {
	case err != nil: // grpc-go has freed it
		return err
	case ctx.Err() != nil: // it may have been queued after its stream's end
		o.unlessLeft(s.config.AnswerTimeout, o.giveUp)
		return ctx.Err()
	case short || c == nil:
		return nil
	}
	return s.await(stream, o, c)
}

// await waits until an answer has left, as long as something of it is taken in
// time.
func (s *Server) await(stream grpc.ServerStream, o *owed, c *conn) error {
	ctx := stream.Context()
	timer := time.NewTimer(s.config.AnswerTimeout)
	defer timer.Stop()
	for {
		select {
		case <-o.left:
			return nil
		case <-o.taken:
			timer.Reset(s.config.AnswerTimeout)
		case <-ctx.Done():
			// The stream has ended, and grpc-go drops the answer: at once, unless its
			// writer waits for a peer that does not read at all.
			o.unlessLeft(s.config.AnswerTimeout, c.abandon)
			return ctx.Err()
		case <-timer.C:
			s.notTaken(ctx, endedCall)
			stream.SetTrailer(tooLongForTrailers)
			o.unlessLeft(endGrace, c.abandon) // a peer that accepts trailers of any length
			return errNotTaken
		}
	}
}

func (s *Server) notTaken(ctx context.Context, ended measuredEnd) {
	s.metrics.AnswersNotTaken.Add(ctx, 1, ended)
}
