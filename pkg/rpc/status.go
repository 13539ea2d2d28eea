package rpc

import (
	"strings"

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
	// Text that quotes a client's input must still be UTF-8, or the detail could
	// not be encoded.
	text := strings.ToValidUTF8(failure.Text(), "\uFFFD")
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
