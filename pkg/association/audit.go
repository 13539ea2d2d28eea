package association

import (
	"context"
	"math"

	"github.com/xmtp-selfhosted/backend/proto/gen/xmtp/identity/associations"
)

// Auditor says whether a client would take the log of an inbox: it refuses a whole log
// that holds an update against today's rules. What chains say about the signatures of
// contract wallets is taken to be good, and how old their blocks are does not matter in
// a log. The zero value is for a log from its beginning.
type Auditor struct{ state State }

// Next is why clients refuse the next update of the log, and so all of it: Invalid as
// from Prepare, Verify and Apply. After that the auditor is worthless. Once ctx is done
// the error is its own.
func (a *Auditor) Next(ctx context.Context, wire *associations.IdentityUpdate) error {
	prepared, err := Prepare(wire, MaxContractSignatures(math.MaxInt))
	if err != nil {
		return err
	}
	local, err := prepared.VerifyLocal(ctx)
	if err != nil {
		return err
	}
	a.state.init()
	return a.state.apply(local.Answered())
}
