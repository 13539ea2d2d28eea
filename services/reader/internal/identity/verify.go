package identity

import (
	"context"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"github.com/xmtp-selfhosted/backend/pkg/caip"
	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/rpc"
	"github.com/xmtp-selfhosted/backend/pkg/wallet"
	"github.com/xmtp-selfhosted/backend/pkg/wire"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
)

// Field numbers of the request and of its entries.
const (
	requestSignatures = 1

	signatureAccountID   = 1
	signatureBlockNumber = 2
	signatureHash        = 3
	signatureBytes       = 4
)

// Verify verifies signatures of contract wallets (API-123): one result per
// signature, in order. The whole request is checked before any chain is asked,
// and fails when one verdict cannot be had.
func (h *Handler) Verify(ctx context.Context, request []byte) (*rpc.Frame, error) {
	asked, err := h.parseSignatures(request)
	if err != nil {
		return nil, err
	}
	results := make([]*backendv1.VerifySmartContractWalletSignaturesResponse_Response, len(asked))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(h.concurrency)
	for i := range asked {
		group.Go(func() error {
			if ctx.Err() != nil { // another signature has failed the request
				return ctx.Err()
			}
			verdict, err := h.verify(ctx, asked[i])
			if err != nil {
				return atSignature(i, err)
			}
			results[i] = &backendv1.VerifySmartContractWalletSignaturesResponse_Response{IsValid: verdict.Valid}
			if verdict.AtBlock {
				results[i].BlockNumber = &verdict.BlockNumber
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	encoded, err := proto.Marshal(&backendv1.VerifySmartContractWalletSignaturesResponse{Responses: results})
	if err != nil {
		return nil, fault.Wrap(fault.Broken, err, "internal error")
	}
	if len(encoded) > int(h.limits.MaxResponseBytes) {
		return nil, tooLong()
	}
	return rpc.FrameOf(encoded), nil
}

func (h *Handler) parseSignatures(request []byte) ([]wallet.Request, error) {
	count, err := wire.Count(request, requestSignatures, h.limits.MaxSCWSignatures)
	if err != nil {
		return nil, err
	}
	if count > int(h.limits.MaxSCWSignatures) {
		return nil, tooMany("signatures", h.limits.MaxSCWSignatures)
	}
	asked := make([]wallet.Request, 0, count)
	m := wire.Read(request)
	for m.Next() {
		if !m.IsBytes(requestSignatures) {
			continue
		}
		signature, err := h.parseSignature(m.Bytes())
		if err != nil {
			return nil, atSignature(len(asked), err)
		}
		asked = append(asked, signature)
	}
	return asked, m.Err()
}

// parseSignature reads one entry, whose signature stays where it is in the request.
func (h *Handler) parseSignature(entry []byte) (asked wallet.Request, err error) {
	var hash []byte
	m := wire.Read(entry)
	for m.Next() {
		switch {
		case m.IsBytes(signatureAccountID):
			asked.AccountID = string(m.Text())
		case m.IsVarint(signatureBlockNumber):
			block := m.Varint()
			asked.BlockNumber = &block
		case m.IsBytes(signatureHash):
			hash = m.Bytes()
		case m.IsBytes(signatureBytes):
			asked.Signature = m.Bytes()
		}
	}
	if m.Err() != nil {
		return asked, m.Err()
	}
	if _, err := caip.ParseAccount(asked.AccountID); err != nil {
		return asked, err
	}
	if n := copy(asked.Hash[:], hash); n != len(asked.Hash) || n != len(hash) {
		return asked, fault.Invalidf(fault.NoReason, "the hash has %d bytes, expected %d", len(hash), len(asked.Hash))
	}
	// Each verification makes several copies of its signature and sends it to the
	// chain's endpoint. A longer one could be in no identity update either.
	if n, most := uint64(len(asked.Signature)), h.limits.MaxEnvelopeBytes; n > most {
		return asked, fault.Invalidf(fault.NoReason, "the signature has %d bytes, expected at most %d", n, most)
	}
	return asked, nil
}

// copies is how many times its signature a verification takes: the question to the
// chain, in hexadecimal, in the body of a request, and what the client's library
// makes of it.
const copies = 8

// VerificationRoom is what a verification of a signature of some bytes takes.
func VerificationRoom(bytes uint64) int64 { return copies * int64(bytes) }

// verify verifies one signature once there is room for it.
func (h *Handler) verify(ctx context.Context, asked wallet.Request) (wallet.Verdict, error) {
	room, bytes := h.verifications.Holder(), VerificationRoom(uint64(len(asked.Signature)))
	if err := room.Take(ctx, bytes); err != nil {
		return wallet.Verdict{}, err
	}
	defer room.Give(bytes)
	return h.verifier.Verify(ctx, asked)
}

// atSignature says which signature an invalid request is about; other failures
// are about the chain and pass.
func atSignature(index int, err error) error {
	failure := fault.Of(err)
	if failure.Kind != fault.Invalid {
		return err
	}
	return fault.Invalidf(fault.NoReason, "signature %d: %s", index, failure.Text())
}
