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

// requestSignatures is the field of the request.
const requestSignatures = 1

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
			verdict, err := h.verifier.Verify(ctx, asked[i])
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
	var decoded backendv1.VerifySmartContractWalletSignaturesRequest
	if err := proto.Unmarshal(request, &decoded); err != nil {
		return nil, wire.ErrMalformed
	}
	asked := make([]wallet.Request, count)
	for i, signature := range decoded.GetSignatures() {
		asked[i] = wallet.Request{
			AccountID: signature.GetAccountId(), BlockNumber: signature.BlockNumber, Signature: signature.GetSignature(),
		}
		if _, err := caip.ParseAccount(asked[i].AccountID); err != nil {
			return nil, atSignature(i, err)
		}
		if n := copy(asked[i].Hash[:], signature.GetHash()); n != len(asked[i].Hash) || n != len(signature.GetHash()) {
			return nil, atSignature(i, fault.Invalidf(fault.NoReason, "the hash has %d bytes, expected %d", len(signature.GetHash()), len(asked[i].Hash)))
		}
		// Each verification makes several copies of its signature and sends it to
		// the chain's endpoint. A longer one could be in no identity update either.
		if n, most := uint64(len(signature.GetSignature())), h.limits.MaxEnvelopeBytes; n > most {
			return nil, atSignature(i, fault.Invalidf(fault.NoReason, "the signature has %d bytes, expected at most %d", n, most))
		}
	}
	return asked, nil
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
