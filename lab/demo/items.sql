-- Rows in the character of TPC-H's line items: keys, money, dates, codes, a short generated sentence. Our own generator,
-- not comparable with published TPC-H results. Deterministic. psql variables: rows.

CREATE TABLE lineitem (
    orderkey bigint NOT NULL, partkey int NOT NULL, suppkey int NOT NULL, linenumber int NOT NULL, quantity numeric(15,2),
    extendedprice numeric(15,2), discount numeric(15,2), tax numeric(15,2), returnflag char(1), linestatus char(1),
    shipdate date, commitdate date, receiptdate date, shipinstruct char(25), shipmode char(10), comment varchar(44));
INSERT INTO lineitem
SELECT i / 4 * 4 + pick(i / 4, 40, 3), partkey, 1 + pick(partkey, 41, 10000), 1 + (i % 4)::int, quantity,
       quantity * (900 + partkey % 1000 + (partkey % 20000) / 10.0), pick(i, 42, 11) / 100.0, pick(i, 43, 9) / 100.0,
       CASE WHEN ship > date '1995-06-17' THEN 'N' WHEN pick(i, 44, 2) = 0 THEN 'R' ELSE 'A' END,
       CASE WHEN ship > date '1995-06-17' THEN 'O' ELSE 'F' END,
       ship, ordered + 30 + pick(i, 45, 61), ship + 1 + pick(i, 46, 30),
       (ARRAY['DELIVER IN PERSON','COLLECT COD','NONE','TAKE BACK RETURN'])[1 + pick(i, 47, 4)],
       (ARRAY['REG AIR','AIR','RAIL','SHIP','TRUCK','MAIL','FOB'])[1 + pick(i, 48, 7)],
       left(w.adverb[1 + pick(i, 49, 16)] || ' ' || w.adjective[1 + pick(i, 50, 16)] || ' ' || w.noun[1 + pick(i, 51, 24)] || ' '
            || w.verb[1 + pick(i, 52, 20)] || ' ' || w.adverb[1 + pick(i, 53, 16)], 10 + pick(i, 54, 34))
FROM (SELECT i, 1 + pick(i, 55, 200000) AS partkey, 1 + pick(i, 56, 50) AS quantity,
             date '1992-01-01' + pick(i / 4, 57, 2405) AS ordered,
             date '1992-01-01' + pick(i / 4, 57, 2405) + 1 + pick(i, 58, 121) AS ship
      FROM generate_series(0::bigint, :rows - 1) i) r,
     (SELECT ARRAY['quickly','slyly','carefully','furiously','blithely','daringly','silently','evenly','fluffily','boldly','never',
                   'always','ironically','finally','busily','quietly'] AS adverb,
             ARRAY['special','pending','unusual','express','regular','final','ironic','even','bold','silent','daring','close','dogged',
                   'brave','stealthy','permanent'] AS adjective,
             ARRAY['packages','requests','accounts','deposits','foxes','ideas','theodolites','pinto beans','instructions','dependencies',
                   'excuses','platelets','asymptotes','courts','dolphins','multipliers','sauternes','warthogs','frets','dinos',
                   'attainments','somas','braids','hockey players'] AS noun,
             ARRAY['sleep','wake','are','cajole','haggle','nag','use','boost','affix','detect','integrate','maintain','nod','was',
                   'lose','sublate','solve','thrash','promise','engage'] AS verb) w;
ALTER TABLE lineitem ADD PRIMARY KEY (orderkey, linenumber);
CREATE INDEX lineitem_part ON lineitem (partkey, suppkey);
