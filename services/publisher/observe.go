package publisher

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/services/publisher/internal/request"
)

func one(name, value string) metric.MeasurementOption {
	return metric.WithAttributeSet(attribute.NewSet(attribute.String(name, value)))
}

var (
	outcomeStored    = one("outcome", "stored")
	outcomeDuplicate = one("outcome", "duplicate")
	outcomeRejected  = one("outcome", "rejected")

	reasons = map[fault.Reason]metric.MeasurementOption{
		fault.NoReason:              one("reason", "unspecified"),
		fault.MalformedPayload:      one("reason", "malformed_payload"),
		fault.InvalidKeyPackage:     one("reason", "invalid_key_package"),
		fault.InvalidIdentityUpdate: one("reason", "invalid_identity_update"),
		fault.InvalidSignature:      one("reason", "invalid_signature"),
		fault.TooLarge:              one("reason", "too_large"),
	}
	reasonTooLong   = one("reason", "response_too_long")
	reasonHeadMoved = one("reason", "head_moved")
)

// countRejection counts what the client has to change. Failures of our own are
// counted as calls and as database errors.
func (p *Publisher) countRejection(ctx context.Context, envelopes int, err error) {
	failure := fault.Of(err)
	reason := reasons[failure.Reason]
	switch failure.Kind {
	case fault.Invalid:
	case fault.TooLong:
		reason = reasonTooLong
	case fault.HeadMoved:
		reason = reasonHeadMoved
	default:
		return
	}
	p.deps.Metrics.PublishEnvelopes.Add(ctx, int64(envelopes), outcomeRejected)
	p.deps.Metrics.PublishRejections.Add(ctx, 1, reason)
}

func (p *Publisher) countStored(ctx context.Context, r *request.Request) {
	if r.Stored > 0 {
		p.deps.Metrics.PublishEnvelopes.Add(ctx, int64(r.Stored), outcomeStored)
	}
	if duplicates := r.Count() - r.Stored; duplicates > 0 {
		p.deps.Metrics.PublishEnvelopes.Add(ctx, int64(duplicates), outcomeDuplicate)
	}
}

func (p *Publisher) lineageChanged(ctx context.Context) {
	p.deps.Metrics.Lineage.Add(ctx, 1)
	p.deps.Logger.Warn("the database has another history than before, after a failover or a restore: the sequence was moved on")
}

func (p *Publisher) countVerification(result string) {
	p.deps.Metrics.SCWVerifications.Add(context.Background(), 1, one("result", result))
}
