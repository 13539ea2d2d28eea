package identity_test

import (
	"bytes"
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"github.com/xmtp-selfhosted/backend/pkg/budget"
	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/limit"
	"github.com/xmtp-selfhosted/backend/pkg/rpc"
	"github.com/xmtp-selfhosted/backend/pkg/wallet"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
	"github.com/xmtp-selfhosted/backend/services/reader/internal/identity"
)

// verifier answers by the first byte of the signature.
type verifier struct {
	asked   atomic.Int64
	running atomic.Int64
	most    atomic.Int64
}

const (
	valid = iota
	invalid
	away
	hang
)

func (v *verifier) Verify(ctx context.Context, request wallet.Request) (wallet.Verdict, error) {
	v.asked.Add(1)
	if now := v.running.Add(1); now > v.most.Load() {
		v.most.Store(now)
	}
	defer v.running.Add(-1)
	time.Sleep(time.Millisecond) // so that calls overlap
	block := uint64(77)
	if request.BlockNumber != nil {
		block = *request.BlockNumber
	}
	switch request.Signature[0] {
	case valid:
		return wallet.Verdict{Valid: true, BlockNumber: block, AtBlock: true}, nil
	case invalid:
		return wallet.Verdict{}, nil
	case hang:
		<-ctx.Done()
		return wallet.Verdict{}, ctx.Err()
	default:
		return wallet.Verdict{}, fault.Wrap(fault.Unavailable, errors.New("refused"), "the chain does not answer")
	}
}

func signature(kind byte) *backendv1.VerifySmartContractWalletSignaturesRequest_Signature {
	return &backendv1.VerifySmartContractWalletSignaturesRequest_Signature{
		AccountId: "eip155:1:0xab16a96d359ec26a11e2c2b3d8f8b8942d5bfcdb", Hash: bytes.Repeat([]byte{7}, 32), Signature: []byte{kind},
	}
}

type signatures = []*backendv1.VerifySmartContractWalletSignaturesRequest_Signature

func same(n int, kind byte) signatures {
	all := make(signatures, n)
	for i := range all {
		all[i] = signature(kind)
	}
	return all
}

const concurrency = 4

func ask(t *testing.T, v identity.Verifier, asked signatures) ([]*backendv1.VerifySmartContractWalletSignaturesResponse_Response, error) {
	t.Helper()
	request, err := proto.Marshal(&backendv1.VerifySmartContractWalletSignaturesRequest{Signatures: asked})
	require.NoError(t, err)
	frame, err := identity.New(limit.Default(), rpc.Rooms{}, nil, v, concurrency, budget.New(64<<20, 0)).Verify(t.Context(), request)
	if err != nil {
		return nil, err
	}
	var response backendv1.VerifySmartContractWalletSignaturesResponse
	require.NoError(t, proto.Unmarshal(frame.Take(), &response))
	return response.GetResponses(), nil
}

// Proves API-123.
func TestOneResultPerSignatureInOrder(t *testing.T) {
	asked := append(same(1, valid), same(2, invalid)...)
	asked = append(asked, signature(valid))
	asked[3].BlockNumber = proto.Uint64(5)
	got, err := ask(t, &verifier{}, asked)
	require.NoError(t, err)
	require.Len(t, got, 4)
	for i, want := range []bool{true, false, false, true} {
		require.Equal(t, want, got[i].GetIsValid())
		require.Nil(t, got[i].Error)
	}
	require.EqualValues(t, 77, got[0].GetBlockNumber())
	require.Nil(t, got[1].BlockNumber)
	require.EqualValues(t, 5, got[3].GetBlockNumber())
	got, err = ask(t, &verifier{}, nil)
	require.NoError(t, err)
	require.Empty(t, got)
}

// Invariant I10: without a verdict for each there is no answer at all, and
// those that hang do not hold it up.
//
// Proves API-123, I10.
func TestAFailingChainFailsTheRequest(t *testing.T) {
	got, err := ask(t, &verifier{}, append(same(3, hang), signature(away)))
	require.Nil(t, got)
	require.Equal(t, fault.Unavailable, fault.KindOf(err))
	_, err = ask(t, &verifier{}, append(same(20, invalid), signature(away)))
	require.Equal(t, fault.Unavailable, fault.KindOf(err))
}

// Proves API-123, API-145.
func TestVerificationsAreBounded(t *testing.T) {
	v := &verifier{}
	got, err := ask(t, v, same(100, valid))
	require.NoError(t, err)
	require.Len(t, got, 100)
	require.LessOrEqual(t, v.most.Load(), int64(concurrency))
	require.Greater(t, v.most.Load(), int64(1))

	v = &verifier{}
	_, err = ask(t, v, same(101, valid))
	require.Equal(t, fault.Invalid, fault.KindOf(err))
	require.Zero(t, v.asked.Load(), "refused before any work")
}

// A signature may be as long as an envelope, in which it would be published.
func TestBytesOfASignature(t *testing.T) {
	most := int(limit.Default().MaxEnvelopeBytes)
	asked := same(3, valid)
	asked[2].Signature = make([]byte, most)
	got, err := ask(t, &verifier{}, asked)
	require.NoError(t, err)
	require.True(t, got[2].GetIsValid())

	asked[2].Signature = make([]byte, most+1)
	v := &verifier{}
	_, err = ask(t, v, asked)
	require.Equal(t, fault.Invalid, fault.KindOf(err))
	require.EqualError(t, err, "signature 2: the signature has 1048577 bytes, expected at most 1048576")
	require.Zero(t, v.asked.Load(), "refused before any work")
}

// Long signatures of all requests together are verified within a budget.
func TestVerificationsShareABudget(t *testing.T) {
	v, room := &verifier{}, budget.New(32<<20, 0) // of which three of 8 MiB are taken at a time
	asked := same(4, valid)
	for _, one := range asked {
		one.Signature = make([]byte, limit.Default().MaxEnvelopeBytes)
	}
	request, err := proto.Marshal(&backendv1.VerifySmartContractWalletSignaturesRequest{Signatures: asked})
	require.NoError(t, err)
	h := identity.New(limit.Default(), rpc.Rooms{}, nil, v, concurrency, room)
	var requests errgroup.Group
	for range 10 {
		requests.Go(func() error { _, err := h.Verify(t.Context(), request); return err })
	}
	require.NoError(t, requests.Wait())
	require.LessOrEqual(t, v.most.Load(), int64(3))
	require.EqualValues(t, 40, v.asked.Load())
	require.Zero(t, room.Used())
}

// Whatever the bytes, a request means here what it means to the protobuf library.
func FuzzVerifyMeansWhatProtobufReads(f *testing.F) {
	raw, err := proto.Marshal(&backendv1.VerifySmartContractWalletSignaturesRequest{Signatures: same(2, valid)})
	require.NoError(f, err)
	f.Add(raw)
	f.Add(raw[:len(raw)/2])
	f.Add(bytes.ReplaceAll(raw, []byte("eip"), []byte{0xff, 'i', 'p'}))
	h := identity.New(limit.Default(), rpc.Rooms{}, nil, &verifier{}, concurrency, budget.New(64<<20, 0))
	f.Fuzz(func(t *testing.T, raw []byte) {
		var decoded backendv1.VerifySmartContractWalletSignaturesRequest
		frame, err := h.Verify(t.Context(), raw)
		if proto.Unmarshal(raw, &decoded) != nil {
			require.Equal(t, fault.Invalid, fault.KindOf(err))
			return
		}
		if err == nil {
			var response backendv1.VerifySmartContractWalletSignaturesResponse
			require.NoError(t, proto.Unmarshal(frame.Take(), &response))
			require.Len(t, response.GetResponses(), len(decoded.GetSignatures()))
		}
	})
}

// A malformed entry is named, and nothing is asked for the others.
func TestMalformedSignatures(t *testing.T) {
	for name, spoil := range map[string]func(s *backendv1.VerifySmartContractWalletSignaturesRequest_Signature){
		"no account":     func(s *backendv1.VerifySmartContractWalletSignaturesRequest_Signature) { s.AccountId = "" },
		"a bare address": func(s *backendv1.VerifySmartContractWalletSignaturesRequest_Signature) { s.AccountId = s.AccountId[9:] },
		"no hash":        func(s *backendv1.VerifySmartContractWalletSignaturesRequest_Signature) { s.Hash = nil },
		"a short hash":   func(s *backendv1.VerifySmartContractWalletSignaturesRequest_Signature) { s.Hash = s.Hash[:31] },
		"a long hash":    func(s *backendv1.VerifySmartContractWalletSignaturesRequest_Signature) { s.Hash = append(s.Hash, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			asked := same(3, valid)
			spoil(asked[2])
			v := &verifier{}
			_, err := ask(t, v, asked)
			require.Equal(t, fault.Invalid, fault.KindOf(err))
			require.Contains(t, fault.Of(err).Text(), "signature 2:")
			require.Zero(t, v.asked.Load())
		})
	}
}
