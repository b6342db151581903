package watch

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"golang.org/x/net/websocket"
)

// flushAt bounds what is gathered before it is written although more events wait.
const flushAt = 64 << 10

// Event is one event with its object encoded.
type Event struct {
	Type   string
	Object []byte
}

// Source is where events come from. Next blocks for the next event; io.EOF ends the
// stream in order. More tells whether Next would not block.
type Source interface {
	Next() (Event, error)
	More() bool
	// Stop makes Next return io.EOF; it may be called from another goroutine.
	Stop()
}

// Serve writes events until the source ends or the client goes. It returns an error
// only when nothing has been written yet.
func Serve(w http.ResponseWriter, req *http.Request, f Framing, src Source) error {
	if isWebSocket(req) {
		return serveWebSocket(w, req, f, src)
	}
	flusher, ok := w.(http.Flusher)
	if !ok {
		return fmt.Errorf("unable to start watch: the connection (%T) can not be flushed", w)
	}
	w.Header().Set("Content-Type", f.ContentType())
	w.Header().Set("Cache-Control", "no-cache, private")
	w.WriteHeader(http.StatusOK)
	flusher.Flush()
	var buf []byte
	for {
		ev, err := src.Next()
		if err != nil {
			return nil // the stream's end is all there is to tell
		}
		buf = f.Append(buf, ev.Type, ev.Object)
		if src.More() && len(buf) < flushAt {
			continue
		}
		if _, err := w.Write(buf); err != nil {
			return nil // the client went away
		}
		flusher.Flush()
		if buf = buf[:0]; cap(buf) > 4*flushAt {
			buf = nil
		}
	}
}

func isWebSocket(req *http.Request) bool {
	return strings.EqualFold(req.Header.Get("Upgrade"), "websocket") &&
		strings.Contains(strings.ToLower(req.Header.Get("Connection")), "upgrade")
}

// serveWebSocket sends each event as one message. Events in JSON are text.
func serveWebSocket(w http.ResponseWriter, req *http.Request, f Framing, src Source) error {
	s := websocket.Server{Handler: func(ws *websocket.Conn) {
		done := make(chan struct{})
		go func() { // what the client sends is ignored, but its leaving is noticed
			defer close(done)
			_, _ = io.Copy(io.Discard, ws)
			src.Stop()
		}()
		defer func() { ws.Close(); <-done }()
		for {
			ev, err := src.Next()
			if err != nil {
				return
			}
			if err := send(ws, f, ev); err != nil {
				return
			}
		}
	}}
	s.ServeHTTP(w, req)
	return nil
}

func send(ws *websocket.Conn, f Framing, ev Event) error {
	b := f.Append(nil, ev.Type, ev.Object)
	if f.Text() {
		return websocket.Message.Send(ws, string(b))
	}
	if len(b) < 4 {
		return errors.New("short frame")
	}
	return websocket.Message.Send(ws, b[4:]) // the message has its own length
}
