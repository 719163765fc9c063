// Package release proves what a release runs that needs no GitHub: the files that
// .github/release makes, the notes of .github/release-notes, and that every action of the
// workflows is pinned. The image is proven in e2e/image. deploy/eks-check, which people run
// against what has been released, is tried here too.
package release
