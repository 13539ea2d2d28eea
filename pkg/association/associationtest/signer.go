// Package associationtest makes signed identity updates from seeds: by wallets,
// contract wallets, installations and passkeys. The same seed
// always gives the same keys and signatures. It is for tests, the command-line
// client and the load generator; its keys protect nothing.
package associationtest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"strconv"

	"filippo.io/edwards25519"
	"github.com/decred/dcrd/dcrec/secp256k1/v4"
	secpecdsa "github.com/decred/dcrd/dcrec/secp256k1/v4/ecdsa"
	"github.com/xmtp-selfhosted/backend/proto/gen/xmtp/identity/associations"
	"github.com/xmtp-selfhosted/backend/proto/gen/xmtp/message_contents"
	"golang.org/x/crypto/sha3"
)

// A Signer can be a member of an inbox and sign its updates.
type Signer interface {
	// Member is the signer as a member identifier.
	Member() *associations.MemberIdentifier
	// Text is the signer as text, as it stands in CreateInbox: an address or a
	// key in hex.
	Text() string
	// Kind is the kind of Text; an installation has none.
	Kind() associations.IdentifierKind
	// Sign signs the signature text of an update.
	Sign(text string) *associations.Signature
}

func secret(kind, seed string) []byte {
	sum := sha256.Sum256([]byte("associationtest " + kind + "\x00" + seed))
	return sum[:]
}

// PersonalHash is the EIP-191 digest of a text, which wallets sign and contract
// wallets are asked about.
func PersonalHash(text string) [32]byte {
	return keccak256([]byte("\x19Ethereum Signed Message:\n" + strconv.Itoa(len(text)) + text))
}

func keccak256(data []byte) (sum [32]byte) {
	hash := sha3.NewLegacyKeccak256()
	_, _ = hash.Write(data)
	hash.Sum(sum[:0])
	return sum
}

// Wallet is an Ethereum wallet with a key of its own (EIP-191 signatures).
type Wallet struct {
	Key *secp256k1.PrivateKey
}

// NewWallet returns the wallet of a seed.
func NewWallet(seed string) *Wallet {
	return &Wallet{Key: secp256k1.PrivKeyFromBytes(secret("wallet", seed))}
}

// Address is 0x and 40 lower-case hex digits.
func (w *Wallet) Address() string { return addressOf(w.Key.PubKey()) }

func addressOf(key *secp256k1.PublicKey) string {
	hash := keccak256(key.SerializeUncompressed()[1:])
	return "0x" + hex.EncodeToString(hash[12:])
}

// Member returns the address.
func (w *Wallet) Member() *associations.MemberIdentifier { return EthereumMember(w.Address()) }

// EthereumMember is any text as an Ethereum member identifier.
func EthereumMember(address string) *associations.MemberIdentifier {
	return &associations.MemberIdentifier{Kind: &associations.MemberIdentifier_EthereumAddress{EthereumAddress: address}}
}

// Text returns the address.
func (w *Wallet) Text() string { return w.Address() }

// Kind is Ethereum.
func (w *Wallet) Kind() associations.IdentifierKind {
	return associations.IdentifierKind_IDENTIFIER_KIND_ETHEREUM
}

// SignHash returns r, s and v over a digest; v is 27 or 28, s in the lower half.
func (w *Wallet) SignHash(hash [32]byte) []byte {
	compact := secpecdsa.SignCompact(w.Key, hash[:], false)
	return append(compact[1:65:65], compact[0])
}

// Sign makes an EIP-191 signature.
func (w *Wallet) Sign(text string) *associations.Signature {
	return ERC191(w.SignHash(PersonalHash(text)))
}

// ERC191 wraps the bytes of an EIP-191 signature.
func ERC191(rsv []byte) *associations.Signature {
	return &associations.Signature{Signature: &associations.Signature_Erc_191{
		Erc_191: &associations.RecoverableEcdsaSignature{Bytes: rsv},
	}}
}

// ContractWallet is a contract wallet that would accept signatures of its owner
// (ERC-1271). Whether a chain agrees is up to the verifier in use.
type ContractWallet struct {
	Owner *Wallet
	// Contract is its address; AccountID and Block are what its signatures name.
	Contract  string
	AccountID string
	Block     uint64
}

// NewContractWallet returns the contract wallet of a seed on the chain of a
// CAIP-2 identifier such as "eip155:1".
func NewContractWallet(seed, chainID string, block uint64) *ContractWallet {
	address := "0x" + hex.EncodeToString(secret("contract", seed)[:20])
	return &ContractWallet{
		Owner:     NewWallet("owner of " + seed),
		Contract:  address,
		AccountID: chainID + ":" + address,
		Block:     block,
	}
}

// Member returns the contract's address.
func (w *ContractWallet) Member() *associations.MemberIdentifier { return EthereumMember(w.Contract) }

// Text returns the contract's address.
func (w *ContractWallet) Text() string { return w.Contract }

// Kind is Ethereum.
func (w *ContractWallet) Kind() associations.IdentifierKind {
	return associations.IdentifierKind_IDENTIFIER_KIND_ETHEREUM
}

// Sign makes a contract-wallet signature out of the owner's.
func (w *ContractWallet) Sign(text string) *associations.Signature {
	return &associations.Signature{Signature: &associations.Signature_Erc_6492{
		Erc_6492: &associations.SmartContractWalletSignature{
			AccountId:   w.AccountID,
			BlockNumber: w.Block,
			Signature:   w.Owner.SignHash(PersonalHash(text)),
		},
	}}
}

// Legacy signs as a key of XMTP v2 did for its wallet, in the kind that is retired:
// only what is stored may have it. Its bytes stand for a signature and are none.
type Legacy struct{ Signer }

// Sign makes a legacy delegated signature.
func (Legacy) Sign(text string) *associations.Signature {
	stand := sha512.Sum512([]byte(text))
	return &associations.Signature{Signature: &associations.Signature_DelegatedErc_191{
		DelegatedErc_191: &associations.LegacyDelegatedSignature{
			DelegatedKey: &message_contents.SignedPublicKey{KeyBytes: stand[:33]},
			Signature:    &associations.RecoverableEcdsaSignature{Bytes: append(stand[:], 0)},
		},
	}}
}

// Installation is an installation of a client.
type Installation struct {
	Key ed25519.PrivateKey
}

// NewInstallation returns the installation of a seed.
func NewInstallation(seed string) *Installation {
	return &Installation{Key: ed25519.NewKeyFromSeed(secret("installation", seed))}
}

// PublicKey has 32 bytes.
func (i *Installation) PublicKey() []byte { return i.Key[ed25519.SeedSize:] }

// Member returns the public key.
func (i *Installation) Member() *associations.MemberIdentifier {
	return &associations.MemberIdentifier{Kind: &associations.MemberIdentifier_InstallationPublicKey{InstallationPublicKey: i.PublicKey()}}
}

// Text returns the public key in hex.
func (i *Installation) Text() string { return hex.EncodeToString(i.PublicKey()) }

// Kind is unspecified: an installation creates and recovers no inbox.
func (i *Installation) Kind() associations.IdentifierKind {
	return associations.IdentifierKind_IDENTIFIER_KIND_UNSPECIFIED
}

// Sign makes an Ed25519ph signature.
func (i *Installation) Sign(text string) *associations.Signature {
	digest := sha512.Sum512([]byte(text))
	signature, err := i.Key.Sign(nil, digest[:], &ed25519.Options{Hash: crypto.SHA512, Context: "IDENTITY UPDATE SIGNATURE"})
	return i.Wrap(must(signature, err))
}

// SignAgain makes another signature of the same text, which is as good: an
// installation can make as many as it likes.
func (i *Installation) SignAgain(text string) *associations.Signature {
	const context = "IDENTITY UPDATE SIGNATURE"
	digest, expanded := sha512.Sum512([]byte(text)), sha512.Sum512(i.Key.Seed())
	key := must(edwards25519.NewScalar().SetBytesWithClamping(expanded[:32]))
	nonce := sha512.Sum512(append([]byte("associationtest again"), text...))
	r := must(edwards25519.NewScalar().SetUniformBytes(nonce[:]))
	signature := new(edwards25519.Point).ScalarBaseMult(r).Bytes()
	// RFC 8032, 5.1: Ed25519ph with a context.
	hash := sha512.New()
	for _, part := range [][]byte{
		[]byte("SigEd25519 no Ed25519 collisions"), {1, byte(len(context))}, []byte(context), signature, i.PublicKey(), digest[:],
	} {
		_, _ = hash.Write(part)
	}
	k := must(edwards25519.NewScalar().SetUniformBytes(hash.Sum(nil)))
	return i.Wrap(append(signature, edwards25519.NewScalar().MultiplyAdd(k, key, r).Bytes()...))
}

// Wrap returns the bytes as a signature by this installation.
func (i *Installation) Wrap(signature []byte) *associations.Signature {
	return &associations.Signature{Signature: &associations.Signature_InstallationKey{
		InstallationKey: &associations.RecoverableEd25519Signature{Bytes: signature, PublicKey: i.PublicKey()},
	}}
}

// PasskeyHolder is a passkey: a P-256 key behind a WebAuthn authenticator.
type PasskeyHolder struct {
	Key *ecdsa.PrivateKey
	// Public is the public key as the passkey's identifier.
	Public []byte
	// Origin and AuthenticatorData are what its assertions say.
	Origin            string
	AuthenticatorData []byte
}

// NewPasskey returns the passkey of a seed, its public key uncompressed.
func NewPasskey(seed string) *PasskeyHolder {
	key := must(ecdsa.ParseRawPrivateKey(elliptic.P256(), secret("passkey", seed)))
	rpID := sha256.Sum256([]byte("passkey.example"))
	return &PasskeyHolder{
		Key:               key,
		Public:            must(key.PublicKey.Bytes()),
		Origin:            "https://passkey.example",
		AuthenticatorData: append(rpID[:], 0x1d, 0, 0, 0, 1), // flags, counter
	}
}

// Compressed returns the same passkey with its public key compressed, which is
// another identity.
func (p *PasskeyHolder) Compressed() *PasskeyHolder {
	compressed := *p
	compressed.Public = append([]byte{2 + p.Public[64]&1}, p.Public[1:33]...)
	return &compressed
}

// Member returns the public key.
func (p *PasskeyHolder) Member() *associations.MemberIdentifier {
	return &associations.MemberIdentifier{Kind: &associations.MemberIdentifier_Passkey{Passkey: &associations.Passkey{Key: p.Public}}}
}

// Text returns the public key in hex.
func (p *PasskeyHolder) Text() string { return hex.EncodeToString(p.Public) }

// Kind is passkey.
func (p *PasskeyHolder) Kind() associations.IdentifierKind {
	return associations.IdentifierKind_IDENTIFIER_KIND_PASSKEY
}

// Challenge is what a passkey signs for a text.
func Challenge(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }

// Sign makes an assertion.
func (p *PasskeyHolder) Sign(text string) *associations.Signature {
	return p.Assert(must(json.Marshal(map[string]any{
		"type":        "webauthn.get",
		"challenge":   Challenge(text),
		"origin":      p.Origin,
		"crossOrigin": false,
	})))
}

// Assert signs any client data.
func (p *PasskeyHolder) Assert(clientData []byte) *associations.Signature {
	clientDataHash := sha256.Sum256(clientData)
	digest := sha256.Sum256(append(append([]byte{}, p.AuthenticatorData...), clientDataHash[:]...))
	return &associations.Signature{Signature: &associations.Signature_Passkey{
		Passkey: &associations.RecoverablePasskeySignature{
			PublicKey: p.Public,
			// Without a source of randomness the nonce comes from key and digest.
			Signature:         must(p.Key.Sign(nil, digest[:], crypto.SHA256)),
			AuthenticatorData: p.AuthenticatorData,
			ClientDataJson:    clientData,
		},
	}}
}

// must is for what cannot fail, given keys that come from this package.
func must[T any](value T, err error) T {
	if err != nil {
		panic("associationtest: " + err.Error())
	}
	return value
}
