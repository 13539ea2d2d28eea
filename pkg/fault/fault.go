// Package fault describes why an operation failed, apart from any transport.
// Everything below the RPC layer returns these values; package rpc alone turns
// them into status codes and PublishError details (section 12 of the
// specification).
package fault

import (
	"context"
	"errors"
	"fmt"
)

// Kind says what the caller can do about a failure. Each kind has exactly one
// status code, which package rpc knows.
type Kind uint8

// The kinds, with the status code that each becomes.
const (
	// Broken is the zero value: an invariant does not hold, or a failure nobody
	// classified (INTERNAL).
	Broken Kind = iota
	// Invalid is a request that can never succeed (INVALID_ARGUMENT).
	Invalid
	// TooLong is a message above a size limit of the transport (OUT_OF_RANGE).
	TooLong
	// HeadMoved is an identity update that lost the check at commit time
	// (ABORTED, API-051).
	HeadMoved
	// Unavailable is a dependency that is away: the database, a chain, a role
	// (UNAVAILABLE).
	Unavailable
	// Late is work that took longer than its time limit (DEADLINE_EXCEEDED).
	Late
	// Exhausted is a bucket or buffer that is used up (RESOURCE_EXHAUSTED).
	Exhausted
	// Unimplemented is a method or an encoding that does not exist here
	// (UNIMPLEMENTED).
	Unimplemented
	// Cancelled is work whose caller went away (CANCELLED).
	Cancelled
)

// Reason refines Invalid for a publish. The numbers are those of
// PublishError.Reason on the wire.
type Reason uint8

// The reasons of API-047.
const (
	NoReason              Reason = 0
	MalformedPayload      Reason = 1
	InvalidKeyPackage     Reason = 2
	InvalidIdentityUpdate Reason = 3
	InvalidSignature      Reason = 4
	TooLarge              Reason = 5
)

// WholeRequest is the Index of a failure that is not about one envelope.
const WholeRequest = -1

// Error is a classified failure. Its text is what a client reads: it says what
// was wrong and what was expected. A cause is for logs and errors.Is only.
type Error struct {
	Kind   Kind
	Reason Reason
	// Index is the position of the failing envelope in its request, or
	// WholeRequest.
	Index int
	// ByCaller says that the caller brought it about, although its kind says that
	// something of ours is away: logs and alerts are not for it.
	ByCaller bool

	text  string
	cause error
}

// Invalidf returns a failure of kind Invalid about the whole request; At gives
// it an index.
func Invalidf(reason Reason, format string, args ...any) *Error {
	return &Error{Kind: Invalid, Reason: reason, Index: WholeRequest, text: fmt.Sprintf(format, args...)}
}

// Errorf returns a failure of the given kind.
func Errorf(kind Kind, format string, args ...any) *Error {
	return &Error{Kind: kind, Index: WholeRequest, text: fmt.Sprintf(format, args...)}
}

// Wrap returns a failure of the given kind that keeps err for errors.Is,
// errors.As and logs. The text of err never reaches a client.
func Wrap(kind Kind, err error, format string, args ...any) *Error {
	return &Error{Kind: kind, Index: WholeRequest, text: fmt.Sprintf(format, args...), cause: err}
}

// At returns a copy of the failure that names the envelope it is about.
func (e *Error) At(index int) *Error {
	at := *e
	at.Index = index
	return &at
}

// OfCaller returns a copy of the failure that its caller brought about.
func (e *Error) OfCaller() *Error {
	own := *e
	own.ByCaller = true
	return &own
}

// Text is what a client may read: without the cause.
func (e *Error) Text() string { return e.text }

// Error is for logs: the text and the cause.
func (e *Error) Error() string {
	if e.cause == nil {
		return e.text
	}
	return e.text + ": " + e.cause.Error()
}

// Unwrap returns the cause, or nil.
func (e *Error) Unwrap() error { return e.cause }

// Of returns the classified failure in err's chain. Context errors become
// Cancelled and Late; anything else is Broken, with err as its cause. Of(nil)
// is nil.
func Of(err error) *Error {
	if err == nil {
		return nil
	}
	var classified *Error
	switch {
	case errors.As(err, &classified):
		return classified
	case errors.Is(err, context.Canceled):
		return Wrap(Cancelled, err, "the caller cancelled the request")
	case errors.Is(err, context.DeadlineExceeded):
		return Wrap(Late, err, "the request took longer than its time limit")
	default:
		return Wrap(Broken, err, "internal error")
	}
}

// KindOf is the kind of the classified failure in err's chain.
func KindOf(err error) Kind { return Of(err).Kind }
