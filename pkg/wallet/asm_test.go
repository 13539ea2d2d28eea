package wallet

import (
	"encoding/hex"
	"os"
	"strings"
	"testing"

	"github.com/ethereum/go-ethereum/core/vm"
	"github.com/stretchr/testify/require"
)

// assemble turns a listing in the form that validator.evm.asm describes into
// code. Operands are hex of any length; `@label` is one byte.
func assemble(t *testing.T, listing string) []byte {
	t.Helper()
	type reference struct {
		at    int
		label string
	}
	var code []byte
	var references []reference
	labels := map[string]int{}
	for line := range strings.Lines(listing) {
		line, _, _ = strings.Cut(line, ";")
		words := strings.Fields(line)
		switch {
		case len(words) == 0:
			continue
		case strings.HasSuffix(words[0], ":"):
			labels[strings.TrimSuffix(words[0], ":")] = len(code)
			code = append(code, byte(vm.JUMPDEST))
			continue
		}
		op := vm.StringToOp(words[0])
		require.Equal(t, words[0], op.String(), "an opcode")
		code = append(code, byte(op))
		if !op.IsPush() {
			require.Len(t, words, 1, line)
			continue
		}
		require.Len(t, words, 2, line)
		operandBytes := int(op-vm.PUSH1) + 1
		if label, isLabel := strings.CutPrefix(words[1], "@"); isLabel {
			require.Equal(t, 1, operandBytes, line)
			references = append(references, reference{len(code), label})
			code = append(code, 0)
			continue
		}
		operand, err := hex.DecodeString(strings.TrimPrefix(words[1], "0x"))
		require.NoError(t, err, line)
		require.Len(t, operand, operandBytes, line)
		code = append(code, operand...)
	}
	labels["end"] = len(code)
	for _, r := range references {
		require.Contains(t, labels, r.label)
		require.Less(t, labels[r.label], 256)
		code[r.at] = byte(labels[r.label])
	}
	return code
}

func TestListingAssemblesToTheValidatorCode(t *testing.T) {
	listing, err := os.ReadFile("validator.evm.asm")
	require.NoError(t, err)
	code := assemble(t, string(listing))
	require.Equal(t, validatorCode, hex.EncodeToString(code))
	require.Len(t, code, 113)
}

// The bytes of the code, typed in again so that neither the listing nor the
// constant can change alone or together.
func TestValidatorCodeIsUnchanged(t *testing.T) {
	const reference = `
		6071380360716000396000513b603857604051601b5760026068565b6000600060605160a060006020515af1156065576000513b
		156065575b6020600060805160605160a0016000515afa1560655760203d10606557600051631626ba7e60e01b14606856
		5b60005b60005360016000f3`
	require.Equal(t, validatorCode, strings.Join(strings.Fields(reference), ""))
}
