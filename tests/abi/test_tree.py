"""abi/tree.py against RFC 6962's own recursive definitions, its known hashes, and forged proofs."""

from collections.abc import Sequence
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_os.abi.tree import (
    HASH,
    HEIGHT,
    TILE,
    WIDTH,
    Tree,
    consistency_proof,
    inclusion_proof,
    leaf_hash,
    leaf_hashes,
    node_hash,
    pack_tile,
    parents,
    place_of,
    root_at,
    root_of,
    tile_root,
    verify_consistency,
    verify_inclusion,
)

LEAVES = [leaf_hash(b"%d" % number) for number in range(700)]
# The eight inputs and the roots that Certificate Transparency's own tests use.
KNOWN_INPUTS = ["", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f"]
KNOWN_ROOTS = {
    1: "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    2: "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    3: "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    8: "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
}


def reference_root(leaves: Sequence[bytes]) -> bytes:
    """MTH of RFC 6962 §2.1, as it is written there."""
    if not leaves:
        return sha256(b"").digest()
    if len(leaves) == 1:
        return leaves[0]
    split = 1
    while split * 2 < len(leaves):
        split *= 2
    return node_hash(reference_root(leaves[:split]), reference_root(leaves[split:]))


def node(level: int, index: int) -> bytes:
    return reference_root(LEAVES[index << level : (index + 1) << level])


sizes = st.integers(1, len(LEAVES))


@pytest.mark.parametrize("size", KNOWN_ROOTS)
def test_roots_are_those_of_certificate_transparency(size: int) -> None:
    leaves = [leaf_hash(bytes.fromhex(text)) for text in KNOWN_INPUTS[:size]]
    assert root_of(leaves).hex() == KNOWN_ROOTS[size]


@given(sizes)
def test_a_growing_tree_has_the_defined_root(size: int) -> None:
    assert root_of(LEAVES[:size]) == reference_root(LEAVES[:size]) == root_at(size, node)


def test_an_empty_tree_has_the_hash_of_nothing() -> None:
    assert Tree().root() == root_of([]) == root_at(0, node) == sha256(b"").digest()


@given(sizes, sizes)
def test_a_tree_goes_on_from_its_frontier(first: int, more: int) -> None:
    whole = Tree()
    for leaf in LEAVES[:first]:
        whole.append(leaf)
    resumed = Tree(whole.size, whole.frontier)
    for leaf in LEAVES[first : first + more]:
        resumed.append(leaf)
    assert resumed.root() == reference_root(LEAVES[: first + more])


def test_a_frontier_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match="2 hashes at its edge, not 1"):
        Tree(5, [LEAVES[0]])


def test_a_subtree_is_grafted_only_where_it_fits() -> None:
    grafted = Tree()
    grafted.graft(node(3, 0), 3)
    grafted.graft(node(1, 4), 1)
    assert grafted.root() == reference_root(LEAVES[:10])
    with pytest.raises(ValueError, match="does not fit"):
        grafted.graft(node(2, 2), 2)


@given(sizes, st.data())
def test_an_inclusion_proof_holds_for_its_leaf_and_no_other(size: int, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, size - 1))
    proof, root = inclusion_proof(index, size, node), reference_root(LEAVES[:size])
    assert verify_inclusion(LEAVES[index], index, size, proof, root)
    assert len(proof) <= size.bit_length()
    assert not verify_inclusion(leaf_hash(b"other"), index, size, proof, root)
    assert not verify_inclusion(LEAVES[index], index, size, proof, leaf_hash(b"other"))
    assert not verify_inclusion(LEAVES[index], index, size, [*proof, LEAVES[0]], root)
    if size > 1:
        assert not verify_inclusion(LEAVES[index], (index + 1) % size, size, proof, root)
        assert not verify_inclusion(LEAVES[index], index, size, proof[:-1], root)


@given(sizes, st.data())
def test_a_consistency_proof_holds_for_its_trees_and_no_others(new: int, data: st.DataObject) -> None:
    old = data.draw(st.integers(1, new))
    proof = consistency_proof(old, new, node)
    old_root, new_root = reference_root(LEAVES[:old]), reference_root(LEAVES[:new])
    assert verify_consistency(old, new, proof, old_root, new_root)
    other = leaf_hash(b"other")
    assert not verify_consistency(old, new, proof, other, new_root)
    assert not verify_consistency(old, new, proof, old_root, other)
    if proof:
        assert not verify_consistency(old, new, proof[:-1], old_root, new_root)
        assert not verify_consistency(old, new, [*proof[:-1], other], old_root, new_root)


@pytest.mark.parametrize(("index", "size"), [(-1, 5), (5, 5), (0, 0)])
def test_there_is_no_proof_of_a_leaf_outside(index: int, size: int) -> None:
    with pytest.raises(ValueError, match="no leaf"):
        inclusion_proof(index, size, node)
    assert not verify_inclusion(LEAVES[0], index, size, [], LEAVES[0])


@pytest.mark.parametrize(("old", "new"), [(0, 5), (6, 5)])
def test_there_is_no_proof_from_nothing_or_backwards(old: int, new: int) -> None:
    with pytest.raises(ValueError, match="no proof"):
        consistency_proof(old, new, node)
    assert not verify_consistency(old, new, [], LEAVES[0], LEAVES[0])


def test_a_tile_holds_every_hash_below_its_root() -> None:
    packed, root = pack_tile(LEAVES[:WIDTH])
    assert len(packed) == TILE
    assert root == tile_root(packed) == node(HEIGHT, 0)
    for level in range(HEIGHT):
        for index in range(WIDTH >> level):
            tile_level, tile, at = place_of(level, index)
            assert (tile_level, tile, packed[at : at + HASH]) == (0, 0, node(level, index))


def test_the_place_of_a_hash_names_its_tile() -> None:
    assert place_of(0, WIDTH + 3) == (0, 1, 3 * HASH)
    assert place_of(HEIGHT, 5) == (1, 0, 5 * HASH)
    assert place_of(HEIGHT + 1, WIDTH) == (1, 2, WIDTH * HASH)


def test_hashing_many_at_once_gives_the_same() -> None:
    assert leaf_hashes([b"a", b"", b"b" * 1000]) == [leaf_hash(b"a"), leaf_hash(b""), leaf_hash(b"b" * 1000)]
    assert parents(LEAVES[:5]) == [node_hash(*LEAVES[0:2]), node_hash(*LEAVES[2:4])]


def test_a_leaf_is_never_taken_for_a_node() -> None:
    assert leaf_hash(LEAVES[0] + LEAVES[1]) != node_hash(LEAVES[0], LEAVES[1])
