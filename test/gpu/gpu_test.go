package gpu

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write docs/hardware.md and its pictures")

// TestResultsAreCurrent compares the page and its pictures with the committed results.
func TestResultsAreCurrent(t *testing.T) {
	reports, err := readReports("results")
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range page(reports) {
		file := filepath.Join("../../docs", name)
		if *update {
			if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := os.ReadFile(file); err != nil || string(got) != want {
			t.Errorf("%s is not generated from the results (%v): run make update", file, err)
		}
	}
}

// TestPage generates the page from results that were never measured. A later run replaces the records of an earlier one.
func TestPage(t *testing.T) {
	dir := t.TempDir()
	machine := `{"t": 0, "step": "", "what": "machine", "date": "2000-01-02", "commit": "abc", "dry": false, "driver": "999.1", "gpu": "Some GPU", "gpus": 2, "memoryMiB": 81559, "linux": "6.14"}` + "\n"
	lines := machine + `{"t": 1, "step": "calls", "what": "NVML", "gpus": ["any other record"]}
{"t": 2, "step": "mps", "what": "claim", "claim": "a | b", "holds": false}
{"t": 3, "step": "full", "what": "step", "took_s": 3}
{"t": 4, "step": "cores", "what": "claim", "claim": "c", "holds": null, "not_tried": "no kernels"}
{"t": 5, "step": "kernel", "what": "step", "error": "an earlier run"}
{"t": 5, "step": "fault", "what": "step", "cut_off": "the box is used up"}
{"t": 6, "step": "sharing", "what": "sharing", "kind": "graph", "how": "mps", "sharers": 1, "per_s": 50, "p50": 1, "p99": 2}
{"t": 7, "step": "sharing", "what": "sharing", "kind": "graph", "how": "mps", "sharers": 8, "per_s": 100, "p50": 1, "p99": 2}
` + machine + `{"t": 2, "step": "mps", "what": "claim", "claim": "a | b", "holds": true, "mib": 3}
{"t": 3, "step": "kernel", "what": "step", "took_s": 3}`
	write := func(text string) (map[string]*report, error) {
		if err := os.WriteFile(filepath.Join(dir, "a.jsonl"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return readReports(dir)
	}
	reports, err := write(lines)
	if err != nil {
		t.Fatal(err)
	}
	files := page(reports)
	for _, want := range []string{
		"## Some GPU, driver 999.1\n", "- 2000-01-02, commit abc, GPUs: 2, memory of the first: 81559 MiB, Linux 6.14\n", `| ` + "`mps`" + ` | a \| b | seen | mib: 3 |`,
		"| c | not tried | not_tried: no kernels |", "|  | ended early | cut_off: the box is used up |", "| graph | mps | 8 | 100.0 | 1.00 | 2.00 |", "some-gpu-driver-999.1-p99-ms.svg",
	} {
		if !strings.Contains(files["hardware.md"], want) {
			t.Errorf("the page lacks %q:\n%s", want, files["hardware.md"])
		}
	}
	if strings.Contains(files["hardware.md"], "an earlier run") {
		t.Errorf("the page has the error of a step that succeeded later:\n%s", files["hardware.md"])
	}
	if picture := files["../test/gpu/results/some-gpu-driver-999.1-requests-s.svg"]; !strings.Contains(picture, `points="70.0,210.0 520.0,40.0"`) {
		t.Errorf("the picture of requests/s is:\n%s", picture)
	}
	for text, want := range map[string]string{strings.Replace(machine, "false", "true", 1): "dry run", `{"what": "claim"}`: "machine", "{": "a.jsonl:1"} {
		if _, err := write(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// TestDryRun runs the kit from an archive in another working directory, against the simulated driver, without Go and gcc.
func TestDryRun(t *testing.T) {
	dir := t.TempDir()
	archive := filepath.Join(dir, "kit.tar") // make gpu-kit compresses it
	pack := exec.CommandContext(t.Context(), "./run.sh", "-pack", archive)
	unpack := exec.CommandContext(t.Context(), "python3", "-m", "tarfile", "-e", archive, dir)
	dry := exec.CommandContext(t.Context(), filepath.Join(dir, "gpu-kit", "run.sh"), "-dry", "--budget", "50", "--steps", "calls,plugin,mps")
	dry.Dir, dry.Env = "/", []string{"OUT=" + filepath.Join(dir, "out"), "PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	for _, cmd := range []*exec.Cmd{pack, unpack, dry} {
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", cmd, err, out)
		}
	}
	text, err := os.ReadFile(filepath.Join(dir, "out", "results.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	seen := make(map[string]int)
	for line := range strings.Lines(string(text)) {
		l, err := readRecord([]byte(line))
		if err != nil {
			t.Errorf("%s: %v", line, err)
		}
		switch {
		case l.What == "step" && (l.Error != nil || l.NotTried != "" || l.CutOff != ""), l.What == "claim" && l.Holds != nil && !*l.Holds:
			t.Error(line)
		case l.What == "claim" && l.Holds != nil:
			seen[l.Step]++
		}
	}
	for step, want := range map[string]int{"calls": 2, "plugin": 7, "mps": 13, "settings": 1} {
		if seen[step] < want {
			t.Errorf("%d statements of step %s were seen, want %d at least", seen[step], step, want)
		}
	}
}
