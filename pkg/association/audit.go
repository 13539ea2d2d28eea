package association

import (
	"context"
	"math"

	"github.com/xmtp-selfhosted/backend/proto/gen/xmtp/identity/associations"
)

// Audit says whether a client would take the log of an inbox: it refuses a whole log
// that holds an update against today's rules. It returns the place of the first such
// update and why it is refused, or -1 and nil. What chains say about the signatures
// of contract wallets is taken to be good, and how old their blocks are does not
// matter in a log. Once ctx is done the error is its own.
func Audit(ctx context.Context, history []*associations.IdentityUpdate) (at int, err error) {
	state := new(State)
	state.init()
	for i, wire := range history {
		if err := state.audit(ctx, wire); err != nil {
			return i, err
		}
	}
	return -1, nil
}

func (s *State) audit(ctx context.Context, wire *associations.IdentityUpdate) error {
	prepared, err := Prepare(wire, MaxContractSignatures(math.MaxInt))
	if err != nil {
		return err
	}
	local, err := prepared.VerifyLocal(ctx)
	if err != nil {
		return err
	}
	return s.apply(local.Answered())
}
