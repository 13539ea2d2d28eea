package reader_test

import (
	"bytes"
	"testing"

	"google.golang.org/grpc/codes"

	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
)

// Without a verifier for the chain there is no verdict, which is no invalid
// signature.
func TestAChainWithoutAVerifierIsUnavailable(t *testing.T) {
	r := start(t, configuration(t, "postgres://127.0.0.1:1/none"))
	signature := &backendv1.VerifySmartContractWalletSignaturesRequest_Signature{
		AccountId: "eip155:1:" + address, Hash: bytes.Repeat([]byte{1}, 32), Signature: []byte{1},
	}
	for n, want := range map[int]codes.Code{0: codes.OK, 1: codes.Unavailable, 100: codes.Unavailable, 101: codes.InvalidArgument} {
		_, err := r.VerifySmartContractWalletSignatures(t.Context(), &backendv1.VerifySmartContractWalletSignaturesRequest{Signatures: same(n, signature)})
		requireCode(t, want, err)
	}
}
