package recording

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Normaliser replaces what a server chooses freely. One serves one script: its symbols are
// numbered in the order in which values appear.
type Normaliser struct {
	// Literal is the script's text: what it names is not the server's choice.
	Literal string
	// Now is about when the answers were given; times near it are the server's.
	Now time.Time

	symbols map[string]string
	counts  map[string]int
	names   []string // generated names, longest first
}

// near is how far from now a time may be to be the server's own. Scripts use years far away.
const near = 400 * 24 * time.Hour

var (
	uuid     = regexp.MustCompile(`\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b`)
	jwt      = regexp.MustCompile(`\beyJ[\w-]+\.[\w-]+\.[\w-]+`)
	clock    = regexp.MustCompile(`\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)`)
	cluster  = regexp.MustCompile(`\b10\.96\.\d{1,3}\.\d{1,3}\b|\bfd00:10:96:[0-9a-f:]*[0-9a-f]\b`)
	revision = regexp.MustCompile(`(?i)(current: |resourceversion in record \(|resource version in record \(|resourceversion\\*":\\*")(\d+)`)
	docHash  = regexp.MustCompile(`\bhash=\w+`)
	age      = regexp.MustCompile(`^(\d+[smhdy]){1,2}$`)
	addr     = regexp.MustCompile(`\b127\.0\.0\.1:\d+\b`)
	mount    = regexp.MustCompile(`\bkube-api-access-[a-z0-9]{5}\b`)
	port     = regexp.MustCompile(`\b3[0-2]\d{3}\b`)
	decimal  = regexp.MustCompile(`^[1-9]\d*$`)
)

// symbol is the name of a value of a kind, a new one when it is seen first.
func (n *Normaliser) symbol(kind, value string) string {
	key := kind + " " + value
	if s, ok := n.symbols[key]; ok {
		return s
	}
	if n.symbols == nil {
		n.symbols, n.counts = map[string]string{}, map[string]int{}
	}
	n.counts[kind]++
	s := fmt.Sprintf("<%s-%d>", kind, n.counts[kind])
	n.symbols[key] = s
	return s
}

// Answer normalises an answer in place.
func (n *Normaliser) Answer(a *Answer) {
	for _, vs := range a.Header {
		for i := range vs {
			vs[i] = n.text(vs[i])
		}
	}
	n.find(a.Body)
	a.Body = n.value("", a.Body)
}

// find notes all generated names, which may be told of before the object that has them.
func (n *Normaliser) find(v any) {
	switch t := v.(type) {
	case map[string]any:
		if prefix, ok := t["generateName"].(string); ok {
			if name, _ := t["name"].(string); prefix != "" && strings.HasPrefix(name, prefix) && len(name) == len(prefix)+5 {
				n.generated(prefix, name)
			}
		}
		for _, k := range slices.Sorted(maps.Keys(t)) {
			n.find(t[k])
		}
	case []any:
		for _, e := range t {
			n.find(e)
		}
	}
}

func (n *Normaliser) value(key string, v any) any {
	switch t := v.(type) {
	case map[string]any:
		n.object(t)
		return t
	case []any:
		for i := range t {
			t[i] = n.value(key, t[i])
		}
		if key == "managedFields" {
			// Upstream orders them by time first, which differs from run to run.
			slices.SortStableFunc(t, func(a, b any) int { return cmp.Compare(manager(a), manager(b)) })
		}
		return t
	case string:
		return n.scalar(key, t)
	case float64:
		if s := strconv.FormatFloat(t, 'f', -1, 64); (key == "nodePort" || key == "healthCheckNodePort") && t != 0 && !strings.Contains(n.Literal, s) {
			return n.symbol("port", s)
		}
	}
	return v
}

func manager(v any) string {
	m, ok := v.(map[string]any)
	if !ok {
		return ""
	}
	return fmt.Sprint(m["operation"], " ", m["manager"], " ", m["apiVersion"], " ", m["subresource"])
}

// causes orders what is wrong with an object, in the list and in the message made from it:
// upstream's validation walks Go maps, so that the order differs from run to run.
func causes(status map[string]any) {
	details, _ := status["details"].(map[string]any)
	list, _ := details["causes"].([]any)
	message, _ := status["message"].(string)
	if len(list) < 2 {
		return
	}
	said := make([]string, len(list))
	for i, c := range list {
		cause, _ := c.(map[string]any)
		said[i] = fmt.Sprintf("%v: %v", cause["field"], cause["message"])
	}
	slices.SortFunc(list, func(a, b any) int { return cmp.Compare(string(compact(a)), string(compact(b))) })
	head, ok := strings.CutSuffix(message, "["+strings.Join(said, ", ")+"]")
	if !ok {
		return
	}
	slices.Sort(said)
	status["message"] = head + "[" + strings.Join(said, ", ") + "]"
}

// object normalises the fields of an object, those first that others depend on.
func (n *Normaliser) object(m map[string]any) {
	causes(m)
	if meta, ok := m["metadata"].(map[string]any); ok {
		_, items := m["items"]
		_, rows := m["rows"]
		annotations, _ := meta["annotations"].(map[string]any)
		_, bookmark := annotations["k8s.io/initial-events-end"]
		if rv, ok := meta["resourceVersion"].(string); ok && decimal.MatchString(rv) && (items || rows || bookmark || meta["name"] == nil) {
			meta["resourceVersion"] = "<rv>" // of a list: other writers move it
		}
	}
	if rows, ok := m["rows"].([]any); ok {
		for _, r := range rows {
			row, _ := r.(map[string]any)
			cells, _ := row["cells"].([]any)
			for i, c := range cells {
				if s, ok := c.(string); ok && age.MatchString(s) {
					cells[i] = "<age>"
				}
			}
		}
	}
	for _, k := range slices.Sorted(maps.Keys(m)) {
		if k == "fieldsV1" {
			continue // names of fields only
		}
		m[k] = n.value(k, m[k])
	}
}

// generated notes a name made from a prefix.
func (n *Normaliser) generated(prefix, name string) {
	if slices.Contains(n.names, name) {
		return
	}
	s := n.symbol("name", name)
	n.symbols["name "+name] = prefix + s
	n.names = append(n.names, name)
	slices.SortFunc(n.names, func(a, b string) int { return len(b) - len(a) })
}

func (n *Normaliser) scalar(key, s string) string {
	switch key {
	case "resourceVersion":
		if decimal.MatchString(s) {
			return n.symbol("rv", s)
		}
		return s
	case "continue":
		if s != "" {
			return "<continue>"
		}
	case "gitCommit", "gitTreeState", "buildDate", "goVersion", "compiler", "platform":
		return "<build>"
	}
	return n.text(s)
}

// text replaces what is the server's within a string.
func (n *Normaliser) text(s string) string {
	for _, name := range n.names {
		s = strings.ReplaceAll(s, name, n.symbols["name "+name])
	}
	s = jwt.ReplaceAllString(s, "<jwt>")
	s = uuid.ReplaceAllStringFunc(s, func(v string) string {
		if strings.Contains(n.Literal, v) {
			return v
		}
		return n.symbol("uid", v)
	})
	s = clock.ReplaceAllStringFunc(s, n.time)
	s = cluster.ReplaceAllStringFunc(s, func(v string) string {
		if strings.Contains(n.Literal, v) {
			return v
		}
		return n.symbol("ip", v)
	})
	s = mount.ReplaceAllStringFunc(s, func(v string) string { return n.symbol("volume", v) })
	s = port.ReplaceAllStringFunc(s, func(v string) string {
		if p, ok := n.symbols["port "+v]; ok {
			return p
		}
		return v
	})
	s = revision.ReplaceAllString(s, "${1}<rv>")
	s = docHash.ReplaceAllString(s, "hash=<hash>")
	return addr.ReplaceAllString(s, "<server>")
}

func (n *Normaliser) time(s string) string {
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil || t.Sub(n.Now).Abs() > near {
		return s
	}
	if strings.Contains(s, ".") {
		return "<microtime>"
	}
	return "<time>"
}
