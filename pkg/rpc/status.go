package rpc

import (
	"strings"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"

	"github.com/xmtp-selfhosted/backend/pkg/fault"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
)

// codeOf is the code of each kind of fault (section 12 of the specification and
// the contract notes).
var codeOf = [...]codes.Code{
	fault.Broken:        codes.Internal,
	fault.Invalid:       codes.InvalidArgument,
	fault.TooLong:       codes.OutOfRange,
	fault.HeadMoved:     codes.Aborted,
	fault.Unavailable:   codes.Unavailable,
	fault.Late:          codes.DeadlineExceeded,
	fault.Exhausted:     codes.ResourceExhausted,
	fault.Unimplemented: codes.Unimplemented,
	fault.Cancelled:     codes.Canceled,
}

// maxTextBytes bounds the text of a status: nothing that a client sent comes back at
// length, in a body or in headers that a proxy may refuse.
const maxTextBytes = 1 << 10

// Text is the text of a status: at most 1 KiB, and UTF-8, since it may quote a
// client's input and a detail with anything else could not be encoded.
func Text(text string) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	if len(text) > maxTextBytes {
		end := maxTextBytes - len("…")
		for end > 0 && !utf8.RuneStart(text[end]) {
			end--
		}
		text = text[:end] + "…"
	}
	return text
}

// Status is what a client reads of an error. A status from further down passes
// unchanged (API-150). An invalid publish, which has a reason, carries a
// PublishError detail with the index of its envelope (API-047).
func Status(err error) *status.Status {
	if err == nil {
		return nil
	}
	if passed, ok := err.(interface{ GRPCStatus() *status.Status }); ok {
		return passed.GRPCStatus()
	}
	failure := fault.Of(err)
	text := Text(failure.Text())
	plain := status.New(codeOf[failure.Kind], text)
	if failure.Kind != fault.Invalid || failure.Reason == fault.NoReason {
		return plain
	}
	detail := &backendv1.PublishError{
		Reason:  backendv1.PublishError_Reason(failure.Reason),
		Message: text,
	}
	if failure.Index >= 0 {
		index := uint32(failure.Index)
		detail.Index = &index
	}
	detailed, err := plain.WithDetails(protoadapt.MessageV1Of(detail))
	if err != nil {
		return plain
	}
	return detailed
}
