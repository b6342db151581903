// Package profile tells what the CPU time of a Go process went into, from its pprof profile.
//
// Owns: reading the format (github.com/google/pprof/blob/main/proto/profile.proto), naming
// costs. Must not: take profiles.
package profile

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/skiff-k8s/skiff/test/bench/record"
)

// Top reads a profile and returns its n largest costs, the largest first.
func Top(path string, n int) ([]record.Cost, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read profile: %w", err)
	}
	samples, err := parse(raw)
	if err != nil {
		return nil, fmt.Errorf("profile %s: %w", path, err)
	}
	return largest(samples, n), nil
}

// sample is a stack, innermost function first, with the time spent there.
type sample struct {
	stack []string
	value int64
}

func largest(samples []sample, n int) []record.Cost {
	total := int64(0)
	byName := map[string]int64{}
	for _, s := range samples {
		total += s.value
		byName[name(s.stack)] += s.value
	}
	var costs []record.Cost
	for what, v := range byName {
		costs = append(costs, record.Cost{What: what, Share: float64(v*1000/max(1, total)) / 1000})
	}
	slices.SortFunc(costs, func(a, b record.Cost) int {
		return cmp.Or(cmp.Compare(b.Share, a.Share), cmp.Compare(a.What, b.What))
	})
	return costs[:min(n, len(costs))]
}

// Field numbers of the format.
const (
	profileSample, profileLocation, profileFunction, profileString = 2, 4, 5, 6
	sampleLocation, sampleValue                                    = 1, 2
	locationID, locationLine                                       = 1, 4
	lineFunction                                                   = 1
	functionID, functionName                                       = 1, 2
)

func parse(raw []byte) ([]sample, error) {
	if bytes.HasPrefix(raw, []byte{0x1f, 0x8b}) {
		z, err := gzip.NewReader(bytes.NewReader(raw))
		if err != nil {
			return nil, err
		}
		if raw, err = io.ReadAll(z); err != nil {
			return nil, err
		}
	}
	type rawSample struct{ locations, values []uint64 }
	var samples []rawSample
	var text []string
	locations, functions := map[uint64][]uint64{}, map[uint64]uint64{}
	err := fields(raw, func(num protowire.Number, _ uint64, b []byte) error {
		switch num {
		case profileString:
			text = append(text, string(b))
		case profileSample:
			var s rawSample
			samples = append(samples, s)
			last := &samples[len(samples)-1]
			return fields(b, func(num protowire.Number, v uint64, b []byte) error {
				var err error
				switch num {
				case sampleLocation:
					last.locations, err = numbers(last.locations, v, b)
				case sampleValue:
					last.values, err = numbers(last.values, v, b)
				}
				return err
			})
		case profileLocation:
			var id uint64
			var funcs []uint64
			err := fields(b, func(num protowire.Number, v uint64, b []byte) error {
				switch num {
				case locationID:
					id = v
				case locationLine:
					return fields(b, func(num protowire.Number, v uint64, _ []byte) error {
						if num == lineFunction {
							funcs = append(funcs, v)
						}
						return nil
					})
				}
				return nil
			})
			locations[id] = funcs
			return err
		case profileFunction:
			var id, name uint64
			err := fields(b, func(num protowire.Number, v uint64, _ []byte) error {
				switch num {
				case functionID:
					id = v
				case functionName:
					name = v
				}
				return nil
			})
			functions[id] = name
			return err
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	out := make([]sample, 0, len(samples))
	for _, s := range samples {
		if len(s.values) == 0 {
			return nil, errors.New("a sample has no value")
		}
		one := sample{value: int64(s.values[len(s.values)-1])} // CPU profiles: count, nanoseconds
		for _, l := range s.locations {
			for _, f := range locations[l] {
				at := functions[f]
				if at >= uint64(len(text)) {
					return nil, fmt.Errorf("function %d has no name", f)
				}
				one.stack = append(one.stack, text[at])
			}
		}
		out = append(out, one)
	}
	return out, nil
}

// fields calls f for each field of a message: v is its number, b its bytes.
func fields(b []byte, f func(num protowire.Number, v uint64, b []byte) error) error {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
		var v uint64
		var content []byte
		switch typ {
		case protowire.VarintType:
			v, n = protowire.ConsumeVarint(b)
		case protowire.BytesType:
			content, n = protowire.ConsumeBytes(b)
		default:
			n = protowire.ConsumeFieldValue(num, typ, b)
		}
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
		if err := f(num, v, content); err != nil {
			return err
		}
	}
	return nil
}

// numbers appends a repeated number, packed or not.
func numbers(to []uint64, v uint64, packed []byte) ([]uint64, error) {
	if packed == nil {
		return append(to, v), nil
	}
	for len(packed) > 0 {
		v, n := protowire.ConsumeVarint(packed)
		if n < 0 {
			return nil, protowire.ParseError(n)
		}
		to, packed = append(to, v), packed[n:]
	}
	return to, nil
}
