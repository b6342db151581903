package flowcontrol

import "hash/maphash"

// maxHand bounds the hand size: more cards have more entropy than a hash
// (the API's validation refuses more than 60 bits).
const maxHand = 64

// flowHasher tells flows apart. Its seed is this process's: nobody can choose a flow that
// shares all its queues with another's.
type flowHasher struct{ seed maphash.Seed }

func newFlowHasher() flowHasher { return flowHasher{maphash.MakeSeed()} }

func (f flowHasher) hash(schema, distinguisher string) uint64 {
	var h maphash.Hash
	h.SetSeed(f.seed)
	h.WriteString(schema)
	h.WriteByte(0) // no name holds it
	h.WriteString(distinguisher)
	return h.Sum64()
}

// deal appends a hand of different cards from a deck to hand, the same for the same hash
// (shuffle sharding, KEP-1040).
func deal(hand []int, hash uint64, deck, size int) []int {
	size = min(size, deck, maxHand)
	var sorted [maxHand]int // the hand in order: which cards are gone
	for n := range size {
		left := uint64(deck - n)
		card := int(hash % left)
		hash /= left
		// card counts those that are still there.
		i := 0
		for i < n && sorted[i] <= card {
			card++
			i++
		}
		copy(sorted[i+1:n+1], sorted[i:n])
		sorted[i] = card
		hand = append(hand, card)
	}
	return hand
}
