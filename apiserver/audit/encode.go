package audit

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/audit"
)

// eventHead begins every event.
const eventHead = `{"kind":"Event","apiVersion":"audit.k8s.io/v1",`

// appendEvent appends the event as a line of JSON, byte for byte as encoding/json writes
// audit.k8s.io/v1 Event. extra and impersonated are the extra fields of the two users.
func appendEvent(b []byte, ev *audit.Event, extra, impersonated map[string][]string) []byte {
	b = append(b, eventHead...)
	b = appendField(b, "level", string(ev.Level))
	b = appendField(append(b, ','), "auditID", string(ev.AuditID))
	b = appendField(append(b, ','), "stage", string(ev.Stage))
	b = appendField(append(b, ','), "requestURI", ev.RequestURI)
	b = appendField(append(b, ','), "verb", ev.Verb)
	b = appendUser(append(b, `,"user":`...), &ev.User, extra)
	if ev.ImpersonatedUser != nil {
		b = appendUser(append(b, `,"impersonatedUser":`...), ev.ImpersonatedUser, impersonated)
	}
	if m := ev.AuthenticationMetadata; m != nil {
		b = append(b, `,"authenticationMetadata":{`...)
		if m.ImpersonationConstraint != "" {
			b = appendField(b, "impersonationConstraint", m.ImpersonationConstraint)
		}
		b = append(b, '}')
	}
	if len(ev.SourceIPs) > 0 {
		b = appendStrings(append(b, `,"sourceIPs":`...), ev.SourceIPs)
	}
	if ev.UserAgent != "" {
		b = appendField(append(b, ','), "userAgent", ev.UserAgent)
	}
	if ev.ObjectRef != nil {
		b = appendRef(append(b, `,"objectRef":`...), ev.ObjectRef)
	}
	if ev.ResponseStatus != nil {
		b = appendStatus(append(b, `,"responseStatus":`...), ev.ResponseStatus)
	}
	if ev.RequestObject != nil {
		b = appendUnknown(append(b, `,"requestObject":`...), ev.RequestObject)
	}
	if ev.ResponseObject != nil {
		b = appendUnknown(append(b, `,"responseObject":`...), ev.ResponseObject)
	}
	b = appendTime(append(b, `,"requestReceivedTimestamp":`...), ev.RequestReceivedTimestamp.Time)
	b = appendTime(append(b, `,"stageTimestamp":`...), ev.StageTimestamp.Time)
	if len(ev.Annotations) > 0 {
		b = append(b, `,"annotations":{`...)
		var first [8]string
		keys := first[:0]
		for k := range ev.Annotations {
			keys = append(keys, k)
		}
		slices.Sort(keys)
		for i, k := range keys {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(appendString(b, k), ':')
			b = appendString(b, ev.Annotations[k])
		}
		b = append(b, '}')
	}
	return append(b, "}\n"...)
}

func appendUser(b []byte, u *authenticationv1.UserInfo, extra map[string][]string) []byte {
	b = append(b, '{')
	n := len(b)
	b = appendOptional(b, n, "username", u.Username)
	b = appendOptional(b, n, "uid", u.UID)
	if len(u.Groups) > 0 {
		b = appendStrings(append(comma(b, n), `"groups":`...), u.Groups)
	}
	if len(extra) > 0 {
		b = append(comma(b, n), `"extra":{`...)
		for i, k := range slices.Sorted(maps.Keys(extra)) {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(appendString(b, k), ':')
			if extra[k] == nil {
				b = append(b, "null"...)
			} else {
				b = appendStrings(b, extra[k])
			}
		}
		b = append(b, '}')
	}
	return append(b, '}')
}

func appendRef(b []byte, r *audit.ObjectReference) []byte {
	b = append(b, '{')
	n := len(b)
	b = appendOptional(b, n, "resource", r.Resource)
	b = appendOptional(b, n, "namespace", r.Namespace)
	b = appendOptional(b, n, "name", r.Name)
	b = appendOptional(b, n, "uid", string(r.UID))
	b = appendOptional(b, n, "apiGroup", r.APIGroup)
	b = appendOptional(b, n, "apiVersion", r.APIVersion)
	b = appendOptional(b, n, "resourceVersion", r.ResourceVersion)
	b = appendOptional(b, n, "subresource", r.Subresource)
	return append(b, '}')
}

func appendStatus(b []byte, s *metav1.Status) []byte {
	b = append(b, `{"metadata":{}`...)
	n := len(b) - 1 // there is a field before
	b = appendOptional(b, n, "status", s.Status)
	b = appendOptional(b, n, "message", s.Message)
	b = appendOptional(b, n, "reason", string(s.Reason))
	if s.Details != nil {
		if d, err := json.Marshal(s.Details); err == nil { // strings and integers always encode
			b = append(append(b, `,"details":`...), d...)
		}
	}
	if s.Code != 0 {
		b = strconv.AppendInt(append(b, `,"code":`...), int64(s.Code), 10)
	}
	return append(b, '}')
}

// appendUnknown appends JSON as encoding/json does with what a Marshaler returns.
func appendUnknown(b []byte, u *runtime.Unknown) []byte {
	if u.Raw == nil {
		return append(b, "null"...)
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, u.Raw); err != nil {
		return append(b, "null"...) // it was checked before it came here
	}
	buf := bytes.NewBuffer(b)
	json.HTMLEscape(buf, compact.Bytes())
	return buf.Bytes()
}

// appendTime appends a metav1.MicroTime.
func appendTime(b []byte, t time.Time) []byte {
	if t.IsZero() {
		return append(b, "null"...)
	}
	b = append(b, '"')
	b = t.UTC().AppendFormat(b, metav1.RFC3339Micro)
	return append(b, '"')
}

func appendStrings(b []byte, list []string) []byte {
	b = append(b, '[')
	for i, s := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(b, s)
	}
	return append(b, ']')
}

func appendField(b []byte, name, value string) []byte {
	b = append(b, '"')
	b = append(b, name...)
	b = append(b, `":`...)
	return appendString(b, value)
}

// appendOptional leaves empty fields out; start is where the first field of the object
// would begin.
func appendOptional(b []byte, start int, name, value string) []byte {
	if value == "" {
		return b
	}
	return appendField(comma(b, start), name, value)
}

func comma(b []byte, start int) []byte {
	if len(b) > start {
		b = append(b, ',')
	}
	return b
}

// plain tells which bytes stand for themselves in a JSON string that is safe in HTML.
var plain = func() (t [utf8.RuneSelf]bool) {
	for c := range t {
		t[c] = c >= ' ' && c != '"' && c != '\\' && c != '<' && c != '>' && c != '&' && c != 0x7f
	}
	t[0x7f] = true
	return t
}()

func appendString(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c >= utf8.RuneSelf || !plain[c] {
			if q, err := json.Marshal(s); err == nil { // a string always encodes
				return append(b, q...)
			}
		}
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}
