package main

import (
	"strings"
	"testing"
	"time"
)

func TestParseCase(t *testing.T) {
	o := options{contentType: "protobuf", namespace: "n"}
	c, err := parseCase("create:n=20:c=3:ct=json:ns=other:id=x:profile=no", o)
	if err != nil {
		t.Fatal(err)
	}
	if c.id != "x" || c.contentType != "json" || c.namespace != "other" || !c.unprofiled || c.params.int("n", 1) != 20 || c.params.int("absent", 7) != 7 {
		t.Errorf("%+v", c)
	}
	for spec, want := range map[string]string{
		"creat":         `no case "creat"`,
		"create:n":      "key=value",
		"create:n=many": "not a number",
		"create:w=1":    `no parameter "w"`,
		"sleep:d=5":     "not a duration",
		"get:ct=yaml":   "json or protobuf",
	} {
		if _, err := parseCase(spec, o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", spec, err, want)
		}
	}
}

func TestFindSent(t *testing.T) {
	for _, c := range []struct {
		contentType, frame string
		want               int64
	}{
		{"json", `{"f:annotations":{"f:apibench/sent":{}},"annotations":{"apibench/sent":"1790000000000000001"}}`, 1790000000000000001},
		{"protobuf", "xx\n\x0dapibench/sent\x12\x131790000000000000002yy", 1790000000000000002},
		{"json", `{"metadata":{"name":"p"}}`, 0},
		{"json", `"apibench/sent":"17`, 0},
	} {
		if got, ok := findSent([]byte(c.frame), c.contentType); got != c.want || ok != (c.want != 0) {
			t.Errorf("%s %q: %d %v", c.contentType, c.frame, got, ok)
		}
	}
}

func TestRunCountsAndOrders(t *testing.T) {
	var r result
	run(&r, 100, 7, func(_, i int) (int64, error) {
		if i%10 == 0 {
			return 0, errNoPods
		}
		return 2, nil
	})
	if r.Ops != 90 || r.Errors != 10 || r.Bytes != 180 || r.FirstError != errNoPods.Error() {
		t.Errorf("%+v", r.Result)
	}
	r.setLatencies([]time.Duration{3e6, 1e6, 2e6})
	if r.P50ms != 2 || r.MaxMs != 3 {
		t.Errorf("p50 %g, max %g", r.P50ms, r.MaxMs)
	}
}

func TestNodesAreRenewedInTime(t *testing.T) {
	var n nodes
	begin := time.Unix(1000, 0)
	if n.due(begin.Add(time.Hour)) != 0 {
		t.Error("there are no nodes")
	}
	n.made(10, begin)
	n.made(30, begin.Add(10*time.Second))
	if got := n.due(begin.Add(renewAfter - 1)); got != 0 {
		t.Errorf("%d renewed before they are due", got)
	}
	if got := n.due(begin.Add(renewAfter)); got != 30 {
		t.Errorf("%d renewed, want all 30", got)
	}
}
