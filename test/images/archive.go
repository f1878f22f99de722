package images

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"

	digest "github.com/opencontainers/go-digest"
	oci "github.com/opencontainers/image-spec/specs-go"
	specs "github.com/opencontainers/image-spec/specs-go/v1"
)

// nameOfImage is the annotation by which containerd names what it imports.
const nameOfImage = "io.containerd.image.name"

// An ociArchive is a tar that is being written in OCI's image layout:
// https://github.com/opencontainers/image-spec/blob/v1.1.1/image-layout.md.
type ociArchive struct {
	out        *tar.Writer
	compressed bool // its layers are
	done       map[digest.Digest]bool
}

// WriteArchive writes one image, made for an architecture each, to the file name, with compressed
// layers, and returns the digest by which a registry will know it. All must have the same name.
func WriteArchive(name string, platforms ...Image) (digest.Digest, error) {
	if len(platforms) == 0 {
		return "", errors.New("an archive of no image")
	}
	return writeArchive(name, true, platforms)
}

// writeArchive writes a file, which appears only when it is complete, and which everybody may read.
func writeArchive(name string, compressed bool, platforms []Image) (_ digest.Digest, err error) {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return "", err
	}
	f, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+".*")
	if err != nil {
		return "", err
	}
	defer func() {
		err = errors.Join(err, f.Chmod(0o644), f.Close())
		if err == nil {
			err = os.Rename(f.Name(), name)
		}
		if err != nil {
			os.Remove(f.Name())
		}
	}()
	a := ociArchive{out: tar.NewWriter(f), compressed: compressed, done: make(map[digest.Digest]bool)}
	index := specs.Index{Versioned: oci.Versioned{SchemaVersion: 2}, MediaType: specs.MediaTypeImageIndex}
	for _, image := range platforms {
		if image.Name != platforms[0].Name {
			return "", fmt.Errorf("%s and %s in one archive", platforms[0].Name, image.Name)
		}
		manifest, err := a.image(image)
		if err != nil {
			return "", fmt.Errorf("image %s: %w", image.Name, err)
		}
		index.Manifests = append(index.Manifests, manifest)
	}
	entry, err := a.document(specs.MediaTypeImageIndex, index)
	if err != nil {
		return "", err
	}
	tag := platforms[0].Name[strings.LastIndex(platforms[0].Name, ":")+1:]
	entry.Annotations = map[string]string{nameOfImage: platforms[0].Name, specs.AnnotationRefName: tag}
	return entry.Digest, a.end(specs.Index{Versioned: index.Versioned, MediaType: index.MediaType, Manifests: []specs.Descriptor{entry}})
}

// image writes the blobs of an image and returns what an index says of it.
func (a ociArchive) image(image Image) (specs.Descriptor, error) {
	if image.Name == "" {
		return specs.Descriptor{}, errors.New("an image without a name")
	}
	var plain bytes.Buffer
	if err := writeLayer(&plain, image.Files); err != nil {
		return specs.Descriptor{}, err
	}
	layer, err := a.layer(plain.Bytes())
	if err != nil {
		return specs.Descriptor{}, err
	}
	of := image.config(digest.FromBytes(plain.Bytes()))
	config, err := a.document(specs.MediaTypeImageConfig, of)
	if err != nil {
		return specs.Descriptor{}, err
	}
	manifest, err := a.document(specs.MediaTypeImageManifest, specs.Manifest{
		Versioned: oci.Versioned{SchemaVersion: 2}, MediaType: specs.MediaTypeImageManifest,
		Config: config, Layers: []specs.Descriptor{layer},
	})
	manifest.Platform = &of.Platform
	return manifest, err
}

func (a ociArchive) layer(plain []byte) (specs.Descriptor, error) {
	if !a.compressed {
		return a.blob(specs.MediaTypeImageLayer, plain)
	}
	var packed bytes.Buffer
	zip, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if err != nil {
		return specs.Descriptor{}, err
	}
	if _, err := zip.Write(plain); err != nil {
		return specs.Descriptor{}, err
	}
	if err := zip.Close(); err != nil {
		return specs.Descriptor{}, err
	}
	return a.blob(specs.MediaTypeImageLayerGzip, packed.Bytes())
}

// document writes what is JSON.
func (a ociArchive) document(mediaType string, value any) (specs.Descriptor, error) {
	text, err := json.Marshal(value)
	if err != nil {
		return specs.Descriptor{}, err
	}
	return a.blob(mediaType, text)
}

// blob writes bytes under the name of their digest, once.
func (a ociArchive) blob(mediaType string, content []byte) (specs.Descriptor, error) {
	d := specs.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(content), Size: int64(len(content))}
	if a.done[d.Digest] {
		return d, nil
	}
	a.done[d.Digest] = true
	return d, WriteEntry(a.out, path.Join("blobs", "sha256", d.Digest.Encoded()), 0o644, content)
}

// end writes what a reader begins with, and ends the archive.
func (a ociArchive) end(index specs.Index) error {
	layout, err := json.Marshal(specs.ImageLayout{Version: specs.ImageLayoutVersion})
	if err != nil {
		return err
	}
	begin, err := json.Marshal(index)
	if err != nil {
		return err
	}
	return errors.Join(WriteEntry(a.out, specs.ImageLayoutFile, 0o644, layout), WriteEntry(a.out, specs.ImageIndexFile, 0o644, begin), a.out.Close())
}
