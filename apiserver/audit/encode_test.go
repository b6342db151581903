package audit

import (
	"encoding/json"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/apis/audit"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	upstream "k8s.io/apiserver/pkg/audit"
)

// upstreamLine is how upstream's log backend writes an event.
func upstreamLine(t *testing.T, ev *audit.Event) string {
	t.Helper()
	b, err := runtime.Encode(upstream.Codecs.LegacyCodec(auditv1.SchemeGroupVersion), ev)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func extraOf(u *authenticationv1.UserInfo) map[string][]string {
	if u == nil || u.Extra == nil {
		return nil
	}
	out := map[string][]string{}
	for k, v := range u.Extra {
		out[k] = v
	}
	return out
}

func check(t *testing.T, ev *audit.Event) {
	t.Helper()
	want := upstreamLine(t, ev)
	got := string(appendEvent(nil, ev, extraOf(&ev.User), extraOf(ev.ImpersonatedUser)))
	if got != want {
		t.Errorf("\n got %s\nwant %s", got, want)
	}
}

func TestEncodingIsUpstreams(t *testing.T) {
	at := metav1.NewMicroTime(time.Date(2026, 3, 4, 5, 6, 7, 89_000, time.FixedZone("", 3600)))
	check(t, &audit.Event{})
	check(t, &audit.Event{
		Level: audit.LevelRequestResponse, AuditID: "3f", Stage: audit.StageResponseComplete,
		RequestURI: `/api/v1/pods?labelSelector=a<b&c="d"`, Verb: "list",
		User: authenticationv1.UserInfo{Username: "jürgen\u2028\x01\xff", UID: "u", Groups: []string{"a", "<b>"},
			Extra: map[string]authenticationv1.ExtraValue{"z": {"1", "2"}, "a/b": {}, "nil": nil}},
		ImpersonatedUser:       &authenticationv1.UserInfo{Groups: []string{"g"}, Extra: map[string]authenticationv1.ExtraValue{"k": {"v"}}},
		AuthenticationMetadata: &audit.AuthenticationMetadata{ImpersonationConstraint: "impersonate:user-info"},
		SourceIPs:              []string{"10.0.0.1", "::1"}, UserAgent: "kubectl/v1 (linux)\t\b\f",
		ObjectRef: &audit.ObjectReference{Resource: "pods", Namespace: "n", Name: "p", UID: "u", APIGroup: "g", APIVersion: "v1", ResourceVersion: "7", Subresource: "status"},
		ResponseStatus: &metav1.Status{Status: "Failure", Message: `pods "x" not found`, Reason: metav1.StatusReasonNotFound, Code: 404,
			Details: &metav1.StatusDetails{Name: "x", Kind: "pods", Causes: []metav1.StatusCause{{Type: "t", Field: "f", Message: "<m>"}}}},
		RequestObject:            &runtime.Unknown{Raw: []byte("{ \"a\" : \"<&>\", \"b\": [1, 2] }\n"), ContentType: runtime.ContentTypeJSON},
		ResponseObject:           &runtime.Unknown{ContentType: runtime.ContentTypeJSON},
		RequestReceivedTimestamp: at, StageTimestamp: at,
		Annotations: map[string]string{"authorization.k8s.io/decision": "allow", "authorization.k8s.io/reason": "", "a": "<"},
	})
	check(t, &audit.Event{ImpersonatedUser: &authenticationv1.UserInfo{}, AuthenticationMetadata: &audit.AuthenticationMetadata{},
		ObjectRef: &audit.ObjectReference{Name: "only"}, ResponseStatus: &metav1.Status{Code: 200}})
}

func FuzzEncodingIsUpstreams(f *testing.F) {
	f.Add("/api", "alice", "system:masters", "key", "curl/8", "pods", "message", uint8(255), int64(1_700_000_000_123_456), int32(200))
	f.Fuzz(func(t *testing.T, uri, name, group, key, agent, resource, message string, shape uint8, micros int64, code int32) {
		at := metav1.NewMicroTime(time.UnixMicro(micros % 4_000_000_000_000_000))
		ev := &audit.Event{Level: "Metadata", AuditID: types.UID(key), RequestURI: uri, Verb: resource,
			User: authenticationv1.UserInfo{Username: name}, UserAgent: agent, StageTimestamp: at}
		if shape&1 != 0 {
			ev.User.Groups = []string{group, name}
			ev.User.Extra = map[string]authenticationv1.ExtraValue{key: {message}, name: {group, uri}}
		}
		if shape&2 != 0 {
			ev.ImpersonatedUser = &authenticationv1.UserInfo{UID: key, Extra: map[string]authenticationv1.ExtraValue{agent: nil}}
		}
		if shape&4 != 0 {
			ev.ObjectRef = &audit.ObjectReference{Resource: resource, Namespace: name, Subresource: group}
		}
		if shape&8 != 0 {
			ev.ResponseStatus = &metav1.Status{Message: message, Code: code, Details: &metav1.StatusDetails{Name: name}}
		}
		if shape&16 != 0 {
			ev.Annotations = map[string]string{key: message, name: group, agent: uri}
		}
		if shape&32 != 0 && json.Valid([]byte(message)) {
			ev.RequestObject = &runtime.Unknown{Raw: []byte(message), ContentType: runtime.ContentTypeJSON}
		}
		if shape&64 != 0 {
			ev.SourceIPs = []string{group}
			ev.RequestReceivedTimestamp = at
		}
		check(t, ev)
	})
}

// TestListItemsCarryNoKind compares a webhook's body with upstream's.
func TestListItemsCarryNoKind(t *testing.T) {
	evs := []audit.Event{{Level: "Metadata", AuditID: "1"}, {Level: "Request", AuditID: "2", SourceIPs: []string{"::1"}}}
	want, err := runtime.Encode(upstream.Codecs.LegacyCodec(auditv1.SchemeGroupVersion), &audit.EventList{Items: evs})
	if err != nil {
		t.Fatal(err)
	}
	var lines [][]byte
	for i := range evs {
		lines = append(lines, appendEvent(nil, &evs[i], nil, nil))
	}
	if got := string(eventList(lines)); got != string(want) {
		t.Errorf("\n got %s\nwant %s", got, want)
	}
}
