"""Generated files in the layout of Taobao's display advertising data, with clicks that follow from past views."""

from pathlib import Path

import numpy as np

LAST_DAY = 1494604800
FIRST_DAY = LAST_DAY - 7 * 86400
CATES = 10


def write_taobao(folder: Path, users: int, samples: int, seed: int) -> None:
    """Write the four files; a user clicks more often on a recently viewed category."""
    rng = np.random.default_rng(seed)
    folder.mkdir()
    ads = 5 * CATES
    cate_of_ad = np.arange(ads) % CATES
    brand_of_ad = cate_of_ad * 3 + rng.integers(0, 3, ads)
    brands = [f"{brand}" if ad % 10 else "NULL" for ad, brand in enumerate(brand_of_ad)]
    prices = rng.lognormal(4, 1, ads)
    rows = [f"{ad},{cate_of_ad[ad]},{ad // 4},{ad // 8},{brands[ad]},{prices[ad]:.2f}" for ad in range(ads)]
    _write(folder / "ad_feature.csv", "adgroup_id,cate_id,campaign_id,customer,brand,price", rows)

    names = "cms_segid,cms_group_id,final_gender_code,age_level,pvalue_level,shopping_level,occupation"
    levels = rng.integers(0, 4, (users, 8))
    rows = [f"{user},{','.join(map(str, levels[user]))}" for user in range(users) if user % 20]
    _write(folder / "user_profile.csv", f"userid,{names},new_user_class_level ", rows)

    count = 100 * users
    user = rng.integers(0, users, count)
    # All times differ, so that the order of behaviours is unique.
    time = FIRST_DAY - 14 * 86400 + rng.permutation(22 * 86400)[:count]
    favourite = rng.integers(0, CATES, (users, 2))
    cate = np.where(rng.random(count) < 0.7, favourite[user, rng.integers(0, 2, count)], rng.integers(0, CATES, count))
    rows = [
        f"{u},{t},pv,{c},{c * 3 + b}" for u, t, c, b in zip(user, time, cate, rng.integers(0, 3, count), strict=True)
    ]
    _write(folder / "behavior_log.csv", "user,time_stamp,btag,cate,brand", rows)

    user, ad = rng.integers(0, users, samples), rng.integers(0, ads, samples)
    time = FIRST_DAY + rng.integers(0, 8 * 86400, samples)
    likes = (favourite[user] == cate_of_ad[ad, None]).any(1)
    click = (rng.random(samples) < np.where(likes, 0.8, 0.1)).astype(int)
    rows = [f"{u},{t},{a},430548_1007,{1 - c},{c}" for u, t, a, c in zip(user, time, ad, click, strict=True)]
    _write(folder / "raw_sample.csv", "user,time_stamp,adgroup_id,pid,nonclk,clk", rows)


def _write(file: Path, header: str, rows: list[str]) -> None:
    file.write_text("\n".join([header, *rows]) + "\n")
