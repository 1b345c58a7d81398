"""Stage `images`: reads and checks labelled images, and splits them."""

from __future__ import annotations

from dynolab.chapters.images.config import ImageConfig
from tasks.runtime.stage import Stage
from tasks.runtime.work import Work

IMAGES_FILE = "images.safetensors"


def images(work: Work[ImageConfig]) -> dict[str, float]:
    """Results: `images.safetensors`, which `dynolab.chapters.images.images.read_images` reads."""
    from dynolab.chapters.images.images import load_images, write_images

    with work.shown():
        splits = load_images(work.config)
        write_images(splits, work.output / IMAGES_FILE)
    channels, height, width = splits.train.shape
    return {
        "images/train": float(len(splits.train)),
        "images/validation": float(len(splits.validation)),
        "images/test": float(len(splits.test)),
        "images/pixels": float(channels * height * width),
        "seconds": work.seconds,
    }


IMAGES = Stage("images", 1, images)
