package watch

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/net/websocket"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

func TestProtobufFrame(t *testing.T) {
	for _, size := range []int{0, 1, 127, 128, 300, 1 << 14, 1 << 21} {
		object := bytes.Repeat([]byte("x"), size)
		got := Protobuf{}.Append(nil, "MODIFIED", object)
		want, err := (&metav1.WatchEvent{Type: "MODIFIED", Object: runtime.RawExtension{Raw: object}}).Marshal()
		if err != nil {
			t.Fatal(err)
		}
		if size == 0 { // the library leaves an empty field out; either reads the same
			var ev metav1.WatchEvent
			if err := ev.Unmarshal(got[4:]); err != nil || ev.Type != "MODIFIED" || len(ev.Object.Raw) != 0 {
				t.Errorf("empty: %+v %v", ev, err)
			}
			continue
		}
		if !bytes.Equal(got[4:], want) || int(got[0])<<24|int(got[1])<<16|int(got[2])<<8|int(got[3]) != len(want) {
			t.Errorf("size %d: %d bytes, want %d", size, len(got)-4, len(want))
		}
	}
}

// few is a source of some events.
type few struct {
	events  []Event
	stopped atomic.Bool
}

func (f *few) Next() (Event, error) {
	if len(f.events) == 0 {
		return Event{}, io.EOF
	}
	ev := f.events[0]
	f.events = f.events[1:]
	return ev, nil
}
func (f *few) More() bool { return len(f.events) > 0 }
func (f *few) Stop()      { f.stopped.Store(true) }

func TestServe(t *testing.T) {
	src := func() *few {
		return &few{events: []Event{{"ADDED", []byte(`{"a":1}`)}, {"DELETED", []byte(`{"a":2}`)}}}
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if err := Serve(w, req, JSON{}, src()); err != nil {
			t.Error(err)
		}
	}))
	defer s.Close()
	resp, err := http.Get(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	want := `{"type":"ADDED","object":{"a":1}}` + "\n" + `{"type":"DELETED","object":{"a":2}}` + "\n"
	if got, err := io.ReadAll(resp.Body); err != nil || string(got) != want {
		t.Errorf("%q %v", got, err)
	}

	ws, err := websocket.Dial(strings.Replace(s.URL, "http", "ws", 1), "", s.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer ws.Close()
	var got string
	for {
		var msg string
		err := websocket.Message.Receive(ws, &msg)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		got += msg
	}
	if got != want {
		t.Errorf("websocket: %q", got)
	}
}
