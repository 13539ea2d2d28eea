package mls

import (
	"encoding/binary"

	"github.com/xmtp-selfhosted/backend/pkg/fault"
)

// reader walks the TLS presentation language as MLS writes it (RFC 9420,
// section 2.1). Positions stay those of the whole input, also inside nested
// lists, so that an error can name its byte. The first failure sticks: later
// reads return zero values and lists end, so callers check once, at the end.
type reader struct {
	subject string
	data    []byte
	at      int
	end     int
	err     *fault.Error
}

func newReader(subject string, data []byte) reader {
	return reader{subject: subject, data: data, end: len(data)}
}

// fail records a failure at a position of the input, unless there is one.
func (r *reader) fail(at int, format string, args ...any) {
	if r.err != nil {
		return
	}
	problem := fault.Invalidf(fault.MalformedPayload, format, args...)
	r.err = fault.Invalidf(fault.MalformedPayload,
		"the %s does not parse at byte %d: %s", r.subject, at, problem.Text())
}

// take returns the next n bytes without a copy, nil after a failure.
func (r *reader) take(n int, what string) []byte {
	if r.err != nil {
		return nil
	}
	if left := r.end - r.at; n > left {
		r.fail(r.at, "the %s takes %d bytes, but only %d are left", what, n, left)
		return nil
	}
	taken := r.data[r.at : r.at+n : r.at+n]
	r.at += n
	return taken
}

func (r *reader) uint8(what string) uint8 {
	if b := r.take(1, what); b != nil {
		return b[0]
	}
	return 0
}

func (r *reader) uint16(what string) uint16 {
	if b := r.take(2, what); b != nil {
		return binary.BigEndian.Uint16(b)
	}
	return 0
}

func (r *reader) uint64(what string) uint64 {
	if b := r.take(8, what); b != nil {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

// length reads the length prefix of a variable-size vector: one, two or four
// bytes, the fewest that hold the value.
func (r *reader) length(what string) int {
	start := r.at
	if r.err == nil && start == r.end {
		r.fail(start, "the %s is missing, expected its length", what)
	}
	if r.err != nil {
		return 0
	}
	width := 1 << (r.data[start] >> 6)
	if width == 8 {
		r.fail(start, "the length of the %s is written in 8 bytes, expected 1, 2 or 4", what)
		return 0
	}
	if left := r.end - start; width > left {
		r.fail(start, "the length of the %s takes %d bytes, but only %d are left", what, width, left)
		return 0
	}
	prefix := r.take(width, what)
	value := int(prefix[0] & 0x3f)
	for _, b := range prefix[1:] {
		value = value<<8 | int(b)
	}
	// Each width starts where the narrower one ends: 6 bits in one byte, 14 in two.
	if width == 2 && value < 1<<6 || width == 4 && value < 1<<14 {
		r.fail(start, "the length %d of the %s is written in %d bytes, expected the fewest that hold it", value, what, width)
	}
	return value
}

// vector returns the content of a variable-size vector without a copy.
func (r *reader) vector(what string) []byte {
	start := r.at
	length := r.length(what)
	if left := r.end - r.at; r.err == nil && length > left {
		r.fail(start, "the %s takes %d bytes, but only %d are left", what, length, left)
	}
	return r.take(length, what)
}

// open enters a vector of structures: until close, the input ends where the
// vector does. It returns the end to give to close.
func (r *reader) open(what string) (outer int) {
	outer = r.end
	content := r.vector(what)
	if r.err == nil {
		r.end = r.at
		r.at -= len(content)
	}
	return outer
}

// more says whether the open vector, or the input, has another item.
func (r *reader) more() bool { return r.err == nil && r.at < r.end }

// close leaves a vector whose items were all read.
func (r *reader) close(outer int) { r.end = outer }

// optional reads the presence byte of an optional value.
func (r *reader) optional(what string) bool {
	start := r.at
	present := r.uint8(what)
	if present > 1 {
		r.fail(start, "the presence byte of the %s is %d, expected 0 or 1", what, present)
	}
	return r.err == nil && present == 1
}
