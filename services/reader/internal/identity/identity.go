// Package identity answers GetInboxIds and VerifySmartContractWalletSignatures.
package identity

import (
	"context"

	"github.com/xmtp-selfhosted/backend/pkg/budget"
	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/limit"
	"github.com/xmtp-selfhosted/backend/pkg/rpc"
	"github.com/xmtp-selfhosted/backend/pkg/store"
	"github.com/xmtp-selfhosted/backend/pkg/wallet"
)

// Service is the full name of the service whose methods are here.
const Service = "xmtp.backend.v1.IdentityService"

// Database runs a read on a server that is up.
type Database interface {
	Read(ctx context.Context, read func(context.Context, *store.Pool) error) error
}

// Verifier finds out whether an account signed a hash. An error says that there
// is no verdict, never that a signature is invalid (invariant I10).
type Verifier interface {
	Verify(ctx context.Context, request wallet.Request) (wallet.Verdict, error)
}

// Handler answers the calls of IdentityService.
type Handler struct {
	limits      limit.Config
	rooms       rpc.Rooms
	replica     Database
	verifier    Verifier
	concurrency int
	// verifications holds what is being verified.
	verifications *budget.Budget
}

// New returns a handler. It verifies at most concurrency signatures of one
// request at a time, and of all together what verifications has room for.
func New(limits limit.Config, rooms rpc.Rooms, replica Database, verifier Verifier, concurrency int, verifications *budget.Budget) *Handler {
	return &Handler{limits: limits, rooms: rooms, replica: replica, verifier: verifier, concurrency: concurrency, verifications: verifications}
}

// Service describes the methods to a server.
func (h *Handler) Service() rpc.Service {
	return rpc.Service{Name: Service, Methods: []rpc.Method{
		{Name: "GetInboxIds", Unary: h.GetInboxIDs},
		{Name: "VerifySmartContractWalletSignatures", Unary: h.Verify},
	}}
}

func tooMany(what string, most uint32) error {
	return fault.Invalidf(fault.NoReason, "the request has more than %d %s, expected at most %d", most, what, most)
}

func tooLong() error {
	return fault.Errorf(fault.TooLong, "the response would be longer than the server's limit for a response: ask for less at a time")
}
