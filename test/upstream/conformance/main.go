// Command conformance runs named tests of Kubernetes' end-to-end suite against a
// cluster and fails unless each of them ran and passed.
//
//	conformance -e2e e2e.test -kubeconfig FILE -tests first-light.txt -out DIR [-ginkgo ginkgo -procs 2]
package main

import (
	"bufio"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

type options struct {
	e2e, ginkgo, kubeconfig, kubectl, tests, out, timeout string
	procs                                                 int
}

func main() {
	var o options
	flag.StringVar(&o.e2e, "e2e", "", "the built e2e.test")
	flag.StringVar(&o.ginkgo, "ginkgo", "", "the built ginkgo; runs tests in parallel")
	flag.StringVar(&o.kubeconfig, "kubeconfig", "", "admin kubeconfig of the cluster")
	flag.StringVar(&o.kubectl, "kubectl", "", "kubectl that tests call")
	flag.StringVar(&o.tests, "tests", "", "file of full test names, one a line; # starts a comment")
	flag.StringVar(&o.out, "out", "", "directory for JUnit and logs")
	flag.StringVar(&o.timeout, "timeout", "25m", "for the whole run")
	flag.IntVar(&o.procs, "procs", 2, "tests at a time, with -ginkgo")
	flag.Parse()
	failed, err := run(o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(1)
	}
	if failed > 0 {
		os.Exit(1)
	}
}

func run(o options) (failed int, err error) {
	for flag, v := range map[string]string{"-e2e": o.e2e, "-kubeconfig": o.kubeconfig, "-tests": o.tests, "-out": o.out} {
		if v == "" {
			return 0, fmt.Errorf("%s is required", flag)
		}
	}
	// The suite runs in a directory of its own.
	for _, p := range []*string{&o.e2e, &o.ginkgo, &o.kubeconfig, &o.kubectl, &o.out} {
		if *p != "" {
			if *p, err = filepath.Abs(*p); err != nil {
				return 0, err
			}
		}
	}
	names, err := readNames(o.tests)
	if err != nil {
		return 0, err
	}
	if err := os.RemoveAll(o.out); err != nil {
		return 0, err
	}
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return 0, err
	}
	runErr := runSuite(o, names)
	results, err := readJUnit(o.out)
	if err != nil {
		return 0, errors.Join(err, runErr)
	}
	passed := 0
	for _, n := range names {
		r, ran := results[n]
		switch {
		case !ran:
			fmt.Printf("NOT RUN  %s\n", n)
			failed++
		case r.Status != "passed":
			fmt.Printf("FAILED   %s\n         %s\n", n, r.reason())
			failed++
		default:
			fmt.Printf("passed   %s (%.1f s)\n", n, r.Seconds)
			passed++
		}
	}
	fmt.Printf("%d passed, %d failed\n", passed, failed)
	if failed == 0 && runErr != nil {
		return 0, fmt.Errorf("every test passed but the suite did not end well: %w", runErr)
	}
	return failed, nil
}

func readNames(path string) ([]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var names []string
	sc := bufio.NewScanner(f)
	for sc.Scan() {
		if line := strings.TrimSpace(sc.Text()); line != "" && !strings.HasPrefix(line, "#") {
			names = append(names, line)
		}
	}
	if len(names) == 0 && sc.Err() == nil {
		return nil, fmt.Errorf("%s names no test", path)
	}
	return names, sc.Err()
}

func runSuite(o options, names []string) error {
	focus := make([]string, len(names))
	for i, n := range names {
		// Ginkgo matches behind the suite's own description; every name starts with its [sig-…].
		focus[i] = regexp.QuoteMeta(n) + "$"
	}
	suite := []string{
		"--provider=skeleton", "--kubeconfig=" + o.kubeconfig, "--kubectl-path=" + o.kubectl,
		"--allowed-not-ready-nodes=-1", "--num-nodes=1", "--node-os-distro=debian",
		"--report-dir=" + o.out, "--report-complete-junit", "--disable-log-dump",
	}
	var cmd *exec.Cmd
	if o.ginkgo != "" {
		args := []string{"-p", fmt.Sprintf("--procs=%d", o.procs), "--timeout=" + o.timeout, "--no-color", "--focus=" + strings.Join(focus, "|"), o.e2e, "--"}
		cmd = exec.Command(o.ginkgo, append(args, suite...)...)
	} else {
		cmd = exec.Command(o.e2e, append([]string{"-ginkgo.timeout=" + o.timeout, "-ginkgo.no-color", "-ginkgo.focus=" + strings.Join(focus, "|")}, suite...)...)
	}
	log, err := os.Create(filepath.Join(o.out, "e2e.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("end-to-end suite: %w (log: %s)", err, log.Name())
	}
	return nil
}

type testcase struct {
	Name    string  `xml:"name,attr"`
	Status  string  `xml:"status,attr"`
	Seconds float64 `xml:"time,attr"`
	Failure *struct {
		Message string `xml:"message,attr"`
		Text    string `xml:",chardata"`
	} `xml:"failure"`
	Error *struct {
		Message string `xml:"message,attr"`
	} `xml:"error"`
}

func (t testcase) reason() string {
	switch {
	case t.Failure != nil:
		return t.Failure.Message
	case t.Error != nil:
		return t.Error.Message
	}
	return "status " + t.Status
}

// readJUnit returns the tests that ran, by the name that names.txt gives them: JUnit puts
// "[It] " before and all labels behind it.
func readJUnit(dir string) (map[string]testcase, error) {
	files, err := filepath.Glob(filepath.Join(dir, "junit*.xml"))
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("the suite wrote no JUnit report to %s; see e2e.log there", dir)
	}
	out := map[string]testcase{}
	for _, path := range files {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		var report struct {
			Cases []testcase `xml:"testsuite>testcase"`
		}
		if err := xml.Unmarshal(text, &report); err != nil {
			return nil, fmt.Errorf("read %s: %w", path, err)
		}
		for _, c := range report.Cases {
			if c.Status == "skipped" || !strings.HasPrefix(c.Name, "[It] ") {
				continue
			}
			out[strings.TrimPrefix(c.Name, "[It] ")] = c
		}
	}
	return out, nil
}
