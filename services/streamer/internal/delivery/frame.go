package delivery

import (
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/xmtp-selfhosted/backend/pkg/topic"
)

// Envelope is one encoded ServerEnvelope, shared by all outputs it is queued in.
type Envelope struct {
	SequenceID topic.SequenceID
	// ServerNS is the start of the storing transaction, for metrics.
	ServerNS int64
	// Trace is an owner's mark on an envelope whose way it follows, nil for most.
	Trace atomic.Pointer[Trace]
	// Encoded must not change.
	Encoded []byte

	// holders counts the outputs that hold it, if it is shared.
	holders int32
}

// Trace is the trace context of a publish, as the bus carries it, and when its
// notice arrived.
type Trace struct {
	Context [25]byte
	Heard   time.Time
}

// FramedSize is what the envelope takes in a Messages frame: tag, length, bytes.
func (e *Envelope) FramedSize() int {
	return 1 + (bits.Len(uint(len(e.Encoded))|1)+6)/7 + len(e.Encoded)
}

// Kind of a frame.
type Kind uint8

// The frames of both stream kinds. Started carries targets on a static stream
// only.
const (
	Started Kind = iota
	Applied
	Messages
	Ping
	Pong
	Keepalive
	kinds
)

// String is the value of the frame label in metrics.
func (k Kind) String() string {
	return [kinds]string{"started", "applied", "messages", "ping", "pong", "keepalive"}[k]
}

// Target is the fixed catch-up target of a new registration.
type Target struct {
	Topic   topic.Topic
	Through topic.SequenceID
}

// targetBytes is about what a target takes, with its topic, and encoded.
const targetBytes = 128

// controlBytes is what a frame without envelopes or targets is counted as.
const controlBytes = 64

// frameBytes is what a Messages frame takes beside its envelopes, and slackBytes the
// most that the last buffer of an encoded one is too long.
const (
	frameBytes = 256
	slackBytes = 16 << 10
)

// Frame is one message to a client. Its owner encodes it.
type Frame struct {
	Kind  Kind
	ID    uint64 // of Applied
	Nonce uint64 // of Ping and Pong
	// Targets and Envelopes are for the owner, who may let go of them once it has
	// encoded them.
	Targets   []Target
	Envelopes []*Envelope
	// Live of the envelopes came straight from notices.
	Live int
	// Bytes is the size of the envelopes with their framing, or an estimate for
	// other kinds.
	Bytes int
	// Owed is set when Next returns the frame: Written has to tell when the transport
	// is through with it. The others are too short to matter.
	Owed bool

	session *Session
	charged int         // bytes of the budget, beside those of shared envelopes
	shared  []*Envelope // long ones
	written bool
	// number in its lane, the fetch it came from, and the live frame that it
	// must not overtake if it is history.
	number uint32
	after  uint32
	fetch  uint64
}
