package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// root is the folder of the checkout.
const root = "../.."

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.+)$`)
	fence   = regexp.MustCompile("(?ms)^ *```.*?^ *```")
	dropped = regexp.MustCompile("[^a-z0-9 _-]")
)

// pages are the texts that people read, by their names in the checkout.
func pages(t *testing.T) []string {
	t.Helper()
	names := []string{"README.md", "CONTRIBUTING.md", "charts/gpumem/README.md", "test/README.md"}
	docs, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil || len(docs) == 0 {
		t.Fatalf("docs: %v, %v", docs, err)
	}
	for _, name := range docs {
		names = append(names, "docs/"+filepath.Base(name))
	}
	return names
}

func readPage(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Every link to a file or to a heading leads there.
func TestLinksLeadSomewhere(t *testing.T) {
	checked := 0
	for _, page := range pages(t) {
		for _, found := range link.FindAllStringSubmatch(fence.ReplaceAllString(readPage(t, page), ""), -1) {
			if strings.Contains(found[1], "://") {
				continue
			}
			checked++
			file, anchor, _ := strings.Cut(found[1], "#")
			target := page
			if file != "" {
				target = filepath.Join(filepath.Dir(page), file)
			}
			if _, err := os.Stat(filepath.Join(root, target)); err != nil {
				t.Errorf("%s: [](%s): %v", page, found[1], err)
			} else if anchor != "" && !anchors(readPage(t, target))[anchor] {
				t.Errorf("%s: [](%s): no such heading", page, found[1])
			}
		}
	}
	if checked < 50 {
		t.Errorf("%d links were looked at: are these the pages?", checked)
	}
}

// Every page of docs is linked from README.md.
func TestReadmeLeadsToEveryPage(t *testing.T) {
	readme := readPage(t, "README.md")
	for _, page := range pages(t) {
		if strings.HasPrefix(page, "docs/") && !strings.Contains(readme, "]("+page) {
			t.Errorf("README.md does not lead to %s", page)
		}
	}
}

// anchors returns the names that GitHub gives to the headings of a page.
func anchors(text string) map[string]bool {
	out := make(map[string]bool)
	for _, found := range heading.FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
		out[strings.ReplaceAll(dropped.ReplaceAllString(strings.ToLower(found[1]), ""), " ", "-")] = true
	}
	return out
}
