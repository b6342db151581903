// Package logs reads container logs in CRI's format and rotates them.
//
// A line is "<RFC 3339 time> <stdout|stderr> <F|P>[:tags] <text>"; P marks a part of
// a line that goes on in the next record of its stream.
package logs

import (
	"bytes"
	"errors"
	"fmt"
	"time"
)

// Entry is one record of a log.
type Entry struct {
	Time    time.Time
	Stream  string
	Partial bool
	Text    []byte // without the line's end
	raw     []byte // the time as written
}

var errFormat = errors.New("not in CRI log format")

// Parse reads one line, without its newline.
func Parse(line []byte) (Entry, error) {
	var e Entry
	stamp, rest, ok := bytes.Cut(line, []byte{' '})
	if !ok {
		return e, fmt.Errorf("%w: no time", errFormat)
	}
	t, err := time.Parse(time.RFC3339Nano, string(stamp))
	if err != nil {
		return e, fmt.Errorf("%w: %v", errFormat, err)
	}
	stream, rest, ok := bytes.Cut(rest, []byte{' '})
	if !ok || string(stream) != "stdout" && string(stream) != "stderr" {
		return e, fmt.Errorf("%w: unexpected stream %q", errFormat, stream)
	}
	tags, text, _ := bytes.Cut(rest, []byte{' '})
	tag, _, _ := bytes.Cut(tags, []byte{':'})
	switch string(tag) {
	case "P":
		e.Partial = true
	case "F":
	default:
		return e, fmt.Errorf("%w: unexpected tag %q", errFormat, tag)
	}
	e.Time, e.Stream, e.Text, e.raw = t, string(stream), text, stamp
	return e, nil
}
