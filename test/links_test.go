package test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	fence   = regexp.MustCompile("(?ms)^```.*?^```")
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ +(.*)$`)
	// notInAnchors are the characters that GitHub leaves out of a heading's anchor.
	notInAnchors = regexp.MustCompile(`[^\p{L}\p{N}\p{M} _-]`)
)

// TestLinks checks that each relative link of a page leads to a file and to a heading in it.
func TestLinks(t *testing.T) {
	out, err := exec.Command("git", "-C", "..", "ls-files", "*.md").Output()
	if err != nil {
		t.Fatal(err)
	}
	read := func(path string) string {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return fence.ReplaceAllString(string(text), "")
	}
	for _, page := range strings.Fields(string(out)) {
		page := filepath.Join("..", page)
		for _, m := range link.FindAllStringSubmatch(read(page), -1) {
			path, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(path, "://") || strings.HasPrefix(path, "mailto:") {
				continue
			}
			target := page
			if path != "" {
				target = filepath.Join(filepath.Dir(page), path)
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s links to %s, which does not exist", page, m[1])
				continue
			}
			if anchor != "" && strings.HasSuffix(target, ".md") && !anchors(read(target))[anchor] {
				t.Errorf("%s links to %s, and %s has no such heading", page, m[1], target)
			}
		}
	}
}

// anchors returns the anchors of a page's headings as GitHub derives them.
func anchors(text string) map[string]bool {
	out := make(map[string]bool)
	for _, m := range heading.FindAllStringSubmatch(text, -1) {
		title := link.ReplaceAllString(m[1], "")
		out[strings.ReplaceAll(strings.ToLower(notInAnchors.ReplaceAllString(title, "")), " ", "-")] = true
	}
	return out
}
