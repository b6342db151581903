package nft

import (
	"testing"

	"github.com/google/nftables"
)

// nft(8) aborts when it lists a concatenation with a type whose length it does not know, and
// with it all else on the host that lists tables.
func TestKeysHaveTypesOfKnownLength(t *testing.T) {
	for name, f := range map[string]Field{"saddr": Saddr, "daddr": Daddr, "original daddr": OrigDaddr, "proto": Proto, "dport": Dport, "mark": Mark, "random": Random(3)} {
		for _, family := range []Family{IPv4, IPv6} {
			if got := family.typeOf(f); got == nftables.TypeInteger || got.Bytes == 0 {
				t.Errorf("%s in a key has type %s", name, got.Name)
			}
		}
	}
}
