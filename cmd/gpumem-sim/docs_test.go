package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "make the pictures of docs/packing.md anew")

// docs/packing.md shows what the policies of today do.
func TestPicturesAndFiguresOfTheDocs(t *testing.T) {
	const docs = "../../docs/packing"
	drawn := docs
	if !*update {
		drawn = t.TempDir()
	}
	var out bytes.Buffer
	err := run(t.Context(), []string{
		"replay", "--nodes", docs + "/nodes.csv", "--pods", docs + "/pods.csv", "--seeds", "1-100",
		"--policies", "binpack,first-fit,best-fit,device-best-fit,spread",
		"--allocation-svg", filepath.Join(drawn, "allocation.svg"), "--fragmentation-svg", filepath.Join(drawn, "fragmentation.svg"),
	}, &out, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"allocation.svg", "fragmentation.svg"} {
		if !bytes.Equal(read(t, filepath.Join(docs, name)), read(t, filepath.Join(drawn, name))) {
			t.Errorf("docs/packing/%s is not what the policies do: run make update", name)
		}
	}
	shown := make(map[string][]string) // by policy
	for line := range strings.SplitSeq(string(read(t, docs+".md")), "\n") {
		if cells := strings.Split(line, "|"); len(cells) == 6 {
			shown[strings.Trim(cells[1], " `")] = []string{strings.TrimSpace(cells[3]), strings.TrimSpace(cells[4])}
		}
	}
	compared := 0
	for line := range strings.SplitSeq(out.String(), "\n") {
		if words := strings.Fields(line); len(words) == 7 && words[2] == "±" {
			compared++
			if diff := cmp.Diff([]string{tenths(t, words[1], words[3]), tenths(t, words[4], words[6])}, shown[words[0]]); diff != "" {
				t.Errorf("docs/packing.md, table, %s (-done +shown):\n%s", words[0], diff)
			}
		}
	}
	if compared != 5 {
		t.Errorf("%d lines of the table were compared with what the policies do, want 5:\n%s", compared, out.String())
	}
}

// What is written to standard output is for programs: the summary goes elsewhere.
func TestStandardOutputIsReadByPrograms(t *testing.T) {
	var out, errOut bytes.Buffer
	err := run(t.Context(), []string{
		"replay", "--nodes", "../../docs/packing/nodes.csv", "--pods", "../../docs/packing/pods.csv", "--seeds", "1", "--policies", "binpack", "--json", "-",
	}, &out, &errOut)
	if err != nil || !json.Valid(out.Bytes()) || !strings.Contains(errOut.String(), "ALLOCATED AT 100%") {
		t.Errorf("error %v, standard output %.80q, standard error %.300q", err, out.String(), errOut.String())
	}
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// tenths rounds "94.06%" and its deviation to what people read.
func tenths(t *testing.T, percent, deviation string) string {
	t.Helper()
	value, err := strconv.ParseFloat(strings.TrimSuffix(percent, "%"), 64)
	if err != nil {
		t.Fatal(err)
	}
	around, err := strconv.ParseFloat(deviation, 64)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%.1f %% ± %.1f", value, around)
}
