package association_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xmtp-selfhosted/backend/pkg/association"
	kit "github.com/xmtp-selfhosted/backend/pkg/association/associationtest"
	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/proto/gen/xmtp/identity/associations"
)

// asEOA signs as a contract wallet, but for the address of an ordinary wallet.
func asEOA(wallet *kit.Wallet, chainID string) *kit.ContractWallet {
	contract := kit.NewContractWallet("eoa", chainID, 7)
	contract.Owner, contract.Contract, contract.AccountID = wallet, wallet.Address(), chainID+":"+wallet.Address()
	return contract
}

// Proves API-044.
func TestEdgeCasesOfContractWallets(t *testing.T) {
	safe := kit.NewContractWallet("safe", "eip155:1", 7)
	onTen := *safe
	onTen.AccountID = "eip155:10:" + safe.Contract
	spelled := *safe
	spelled.AccountID = "eip155:1:" + checksummed(safe.Contract)
	bare := *safe
	bare.Contract, bare.AccountID = safe.Contract[2:], "eip155:1:"+safe.Contract[2:]
	account := func(id string) *kit.ContractWallet {
		w := *safe
		w.AccountID = id
		return &w
	}
	cases := map[string]struct {
		history updates
		update  *associations.IdentityUpdate
		want    fault.Reason
	}{
		"98 created on chain 1, signs on chain 1":  {updates{create(safe)}, inbox(safe, 2).Add(safe, phone).Update(), accepted},
		"98 created on chain 1, adds on chain 10":  {updates{create(safe)}, inbox(safe, 2).Add(&onTen, phone).Update(), fault.InvalidIdentityUpdate},
		"98 created on chain 1, revokes on 10":     {updates{create(safe)}, inbox(safe, 2).Revoke(&onTen, phone.Member()).Update(), fault.InvalidIdentityUpdate},
		"98 created on chain 1, changes on 10":     {updates{create(safe)}, inbox(safe, 2).ChangeRecovery(&onTen, bob.Text(), eth).Update(), fault.InvalidIdentityUpdate},
		"98 recovery that is no member, any chain": {updates{create(safe), inbox(safe, 2).Revoke(safe, safe.Member()).Update()}, inbox(safe, 3).Add(&onTen, phone).Update(), accepted},
		"99 added by ERC-191, signs as a contract": {registered(), inbox(alice, 2).Add(asEOA(alice, "eip155:1"), laptop).Update(), fault.InvalidIdentityUpdate},
		"99 added as a contract, signs by ERC-191": {updates{create(asEOA(alice, "eip155:1"))}, inbox(alice, 2).Add(alice, laptop).Update(), fault.InvalidIdentityUpdate},
		"checksummed account, lower-case signer":   {nil, create(&spelled), accepted},
		"address without 0x cannot create":         {nil, create(&bare), fault.InvalidIdentityUpdate},
		"address without 0x cannot be added":       {registered(), inbox(alice, 2).Add(alice, &bare).Update(), fault.InvalidIdentityUpdate},
		"account without 0x":                       {registered(), inbox(alice, 2).AddAs(alice, &bare, safe.Member()).Update(), fault.InvalidSignature},
		"signature replayed":                       {updates{create(safe), inbox(safe, 2).Revoke(safe, bob.Member()).Update()}, inbox(safe, 2).Revoke(safe, bob.Member()).Update(), fault.InvalidIdentityUpdate},
	}
	for _, id := range []string{
		"", "eip155:1", "eip155:1:" + safe.Contract + ":1", "EIP155:1:" + safe.Contract, "Eip155:1:" + safe.Contract,
		"bip122:1:" + safe.Contract, "cosmos:cosmoshub-3:cosmos1t2uflqwqe0fsj0shcfkrvpukewcw40yjj6hdc0", "eip155:main:" + safe.Contract,
		"eip155:01:" + safe.Contract, "eip155:+1:" + safe.Contract, "eip155:-1:" + safe.Contract, "eip155::" + safe.Contract,
		"eip155:18446744073709551616:" + safe.Contract, "eip155:0x1:" + safe.Contract,
		"eip155:1:" + safe.Contract[:41], "eip155:1:" + safe.Contract + "0", "eip155:1:" + safe.Contract[2:], "eip155:1:0X" + safe.Contract[2:],
		"eip155:1:0x" + strings.Repeat("g", 40), " eip155:1:" + safe.Contract,
	} {
		t.Run("account id "+id, func(t *testing.T) {
			var verifier recorder
			_, _, err := judge(t, story{update: create(account(id))}, &verifier)
			requireReason(t, fault.InvalidSignature, err)
			require.Empty(t, verifier.asked, "no chain is asked")
		})
	}
	cases["the largest chain"] = struct {
		history updates
		update  *associations.IdentityUpdate
		want    fault.Reason
	}{nil, create(account("eip155:18446744073709551615:" + safe.Contract)), accepted}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			_, _, err := judge(t, story{c.history, c.update}, kit.AcceptAll{})
			requireReason(t, c.want, err)
		})
	}
}

// answer is a verifier that always says the same and counts.
type answer struct {
	valid bool
	err   error
	calls atomic.Int32
}

func (a *answer) VerifyContract(context.Context, association.ContractSignature) (bool, error) {
	a.calls.Add(1)
	return a.valid, a.err
}

// Proves I10.
func TestAnswersOfTheVerifier(t *testing.T) {
	safe := kit.NewContractWallet("safe", "eip155:1", 0)
	update := kit.Register(safe, 0, phone, second)
	badInstallation := inbox(safe, 1).Create(safe, 0).Add(safe, shortened(phone)).Update()
	unavailable := fault.Errorf(fault.Unavailable, "the chain is away")
	cases := map[string]struct {
		update *associations.IdentityUpdate
		answer *answer
		kind   fault.Kind
		reason fault.Reason
		calls  int32
	}{
		"102 yes":                      {update, &answer{valid: true}, 0, 0, 1},
		"102 no":                       {update, &answer{}, fault.Invalid, fault.InvalidSignature, 1},
		"100 103 unavailable":          {update, &answer{err: unavailable}, fault.Unavailable, 0, 1},
		"yes with an error is none":    {update, &answer{valid: true, err: unavailable}, fault.Unavailable, 0, 1},
		"malformed address":            {update, &answer{err: fault.Invalidf(fault.NoReason, "bad address")}, fault.Invalid, fault.InvalidSignature, 1},
		"unclassified error":           {update, &answer{err: errors.New("boom")}, fault.Broken, 0, 1},
		"deadline":                     {update, &answer{err: context.DeadlineExceeded}, fault.Late, 0, 1},
		"104 local failure beats away": {badInstallation, &answer{err: unavailable}, fault.Invalid, fault.InvalidSignature, 0},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			prepared, err := association.Prepare(c.update)
			require.NoError(t, err)
			_, err = prepared.Verify(t.Context(), c.answer)
			if c.kind == 0 && c.answer.err == nil {
				require.NoError(t, err)
			} else {
				require.Error(t, err)
				require.Equal(t, c.kind, fault.KindOf(err))
				require.Equal(t, c.reason, fault.Of(err).Reason)
			}
			require.Equal(t, c.calls, c.answer.calls.Load())
		})
	}
	t.Run("no verifier", func(t *testing.T) {
		prepared, err := association.Prepare(update)
		require.NoError(t, err)
		_, err = prepared.Verify(t.Context(), nil)
		require.Equal(t, fault.Unavailable, fault.KindOf(err))
	})
}

func TestEdge105BlockZeroIsPassedOn(t *testing.T) {
	safe := kit.NewContractWallet("safe", "eip155:1", 0)
	update := create(safe)
	prepared, err := association.Prepare(update)
	require.NoError(t, err)
	var verifier recorder
	_, err = prepared.Verify(t.Context(), &verifier)
	require.NoError(t, err)
	require.Equal(t, []association.ContractSignature{{
		AccountID:   safe.AccountID,
		BlockNumber: 0,
		Hash:        kit.PersonalHash(prepared.SignatureText()),
		Signature:   update.GetActions()[0].GetCreateInbox().GetInitialIdentifierSignature().GetErc_6492().GetSignature(),
	}}, verifier.asked)
}

// contracts adds n distinct contract wallets to an inbox by an installation.
func contracts(n int) *associations.IdentityUpdate {
	update := inbox(alice, 2)
	for i := range n {
		update.Add(phone, kit.NewContractWallet(strconv.Itoa(i), "eip155:1", 7))
	}
	return update.Update()
}

// Proves API-044.
func TestEdge106ContractSignaturesAreCounted(t *testing.T) {
	var verifier recorder
	_, after, err := judge(t, story{registered(), contracts(100)}, &verifier)
	require.NoError(t, err)
	require.Len(t, after.Members(), 102)
	require.Len(t, verifier.asked, 100)

	_, err = association.Prepare(contracts(101))
	requireReason(t, fault.TooLarge, err)

	// Counted as they stand, also if the verifier would be asked only once.
	safe := kit.NewContractWallet("safe", "eip155:1", 7)
	_, err = association.Prepare(kit.Register(safe, 0, phone, second), association.MaxContractSignatures(1))
	requireReason(t, fault.TooLarge, err)
	_, err = association.Prepare(kit.Register(safe, 0, phone, second), association.MaxContractSignatures(2))
	require.NoError(t, err)

	// History was counted when it was accepted, by the bound of that time.
	_, err = association.Replay(append(registered(), contracts(101)))
	require.NoError(t, err)
}

func TestOneDefiniteNoBeatsManyThatDoNotAnswer(t *testing.T) {
	prepared, err := association.Prepare(contracts(100))
	require.NoError(t, err)
	var calls atomic.Int32
	_, err = prepared.Verify(t.Context(), kit.VerifierFunc(func(context.Context, association.ContractSignature) (bool, error) {
		if calls.Add(1) == 77 {
			return false, nil
		}
		return false, fault.Errorf(fault.Unavailable, "the chain is away")
	}))
	requireReason(t, fault.InvalidSignature, err)
}

func TestADefiniteNoEndsTheOtherCalls(t *testing.T) {
	prepared, err := association.Prepare(contracts(100))
	require.NoError(t, err)
	var calls atomic.Int32
	_, err = prepared.Verify(t.Context(), kit.VerifierFunc(func(ctx context.Context, _ association.ContractSignature) (bool, error) {
		if calls.Add(1) == 8 {
			return false, nil
		}
		<-ctx.Done() // forever, unless Verify gives up on the others
		return false, ctx.Err()
	}))
	requireReason(t, fault.InvalidSignature, err)
	require.EqualValues(t, 8, calls.Load())
}

func TestAnAbsentChainBeatsATimeLimit(t *testing.T) {
	prepared, err := association.Prepare(contracts(3))
	require.NoError(t, err)
	first := kit.NewContractWallet("0", "eip155:1", 7).AccountID
	_, err = prepared.Verify(t.Context(), kit.VerifierFunc(func(_ context.Context, s association.ContractSignature) (bool, error) {
		if s.AccountID == first {
			return false, context.DeadlineExceeded
		}
		return false, fault.Errorf(fault.Unavailable, "the chain is away")
	}))
	require.Equal(t, fault.Unavailable, fault.KindOf(err))
}

func TestSignaturesAreAskedAboutOnceUnlessTheyDiffer(t *testing.T) {
	safe := kit.NewContractWallet("safe", "eip155:1", 7)
	onTen, atEight := *safe, *safe
	onTen.AccountID = "eip155:10:" + safe.Contract
	atEight.Block = 8
	// All four have the same signature bytes.
	update := inbox(alice, 2).Add(phone, safe).Add(phone, safe).Add(phone, &onTen).Add(phone, &atEight)
	prepared, err := association.Prepare(update.Update())
	require.NoError(t, err)
	var verifier recorder
	_, err = prepared.Verify(t.Context(), &verifier)
	require.NoError(t, err)
	require.Len(t, verifier.asked, 3)
}

func TestVerifyAsksConcurrentlyWithinABound(t *testing.T) {
	prepared, err := association.Prepare(contracts(100))
	require.NoError(t, err)
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		now, most := 0, 0
		count := func(by int) {
			mu.Lock()
			defer mu.Unlock()
			now += by
			most = max(most, now)
		}
		start := time.Now()
		_, err := prepared.Verify(t.Context(), kit.VerifierFunc(func(context.Context, association.ContractSignature) (bool, error) {
			count(1)
			time.Sleep(time.Second)
			count(-1)
			return true, nil
		}))
		require.NoError(t, err)
		require.Equal(t, 8, most)
		require.Equal(t, 13*time.Second, time.Since(start)) // 100 calls of a second, 8 at a time
	})
}

func TestVerifyEndsWithItsContext(t *testing.T) {
	prepared, err := association.Prepare(contracts(100))
	require.NoError(t, err)
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
		defer cancel()
		start := time.Now()
		_, err := prepared.Verify(ctx, kit.VerifierFunc(func(ctx context.Context, _ association.ContractSignature) (bool, error) {
			<-ctx.Done()
			return false, ctx.Err()
		}))
		require.Equal(t, fault.Late, fault.KindOf(err))
		require.Equal(t, 90*time.Second, time.Since(start))
	})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = prepared.Verify(ctx, kit.AcceptAll{})
	require.Equal(t, fault.Cancelled, fault.KindOf(err))
	local, err := association.Prepare(registered()[0])
	require.NoError(t, err)
	_, err = local.Verify(ctx, nil)
	require.Equal(t, fault.Cancelled, fault.KindOf(err))
	require.Equal(t, fault.Cancelled, fault.KindOf(association.NewReplayer().Next(ctx, registered()[0])))
}
